// Owns what all requests remember: slots (recurrent state, convolution window) and pages (latents), sized from
// StateSpecs without knowing their meaning. Memory is reserved once; what a slot or page held before is never cleared
// and never read (fresh sequences start from zero in the ops).
//
// Slot numbers: 0 is nobody's; 1..slots are home slots, present in every slot pool (column 0 of a sequence, snapshots);
// the numbers behind them are draft slots, which exist only where some state has a slot for each draft column: a pool
// of others has none to hand out, whatever its size asks for, and a sequence holds its home slot alone. Page 0 is
// nobody's; a page may have several owners (a shared prefix) and is free again when the last one drops it.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "kdelta/core/buffer.h"
#include "kdelta/core/moves.h"
#include "kdelta/layers/spec.h"
#include "kdelta/runtime/capacity.h"

namespace kdelta::runtime {

class StatePool {
 public:
  // replay: Model::replay over views() for one sequence; needed where a state is of SlotRule::replay.
  using Replay = std::function<void(int32_t slot, int32_t accepted)>;
  // stream: of a CUDA device; what moves there is enqueued, in order with the steps that use it.
  StatePool(Device device, const LayerStates& layers, const PoolSize& size, Replay replay = {},
            Stream* stream = nullptr);

  std::span<const std::vector<AnyView>> views() const { return views_; }
  const PoolSize& size() const { return size_; }  // draft_slots: those that exist
  bool has_draft_slots() const { return size_.draft_slots > 0; }

  int64_t free_slots() const { return static_cast<int64_t>(free_slots_.size()); }
  int64_t free_draft_slots() const { return static_cast<int64_t>(free_draft_slots_.size()); }
  int64_t free_pages() const { return static_cast<int64_t>(free_pages_.size()); }
  // The caller has checked that one is free. A page comes with one owner.
  int32_t take_slot();
  int32_t take_draft_slot();
  int32_t take_page();
  void give_back_slot(int32_t slot);
  void give_back_slots(std::vector<int32_t>& slots);  // clears the list
  void share_page(int32_t page);
  void drop_page(int32_t page);
  void drop_pages(std::vector<int32_t>& pages);  // clears the list
  int page_owners(int32_t page) const { return owners_[static_cast<size_t>(page)]; }
  // Marks a page as one whose owner, when it is the only one, gives it back to whoever needs it; and how many such
  // pages there are.
  void set_cached(int32_t page, bool cached);
  int64_t cached_pages() const { return cached_pages_; }
  // The lists of what is free and who owns what.
  static int64_t list_bytes(const PoolSize& size);

  // The state of a sequence whose last step kept `accepted` tokens, brought to where accepted = 1 reads it: in place,
  // or in another sequence's home slot (a fork, a snapshot). Moves within one slot may overlap. What no move brings
  // there is replayed.
  void settle(std::span<const int32_t> slots, int32_t accepted) { settle(slots, accepted, slots[0]); }
  void settle(std::span<const int32_t> slots, int32_t accepted, int32_t to);
  void copy_slot(int32_t from, int32_t to) { settle({&from, 1}, 1, to); }
  void copy_page(int32_t from, int32_t to);

  // A sequence's settled slot and the first `tokens` tokens of its pages as bytes, and back. Rows behind the last token
  // or the settled window are no part of it: they may hold what a stranger left there. The bytes do not depend on the
  // number of columns.
  int64_t saved_bytes(int64_t tokens) const;
  void save(int32_t slot, std::span<const int32_t> pages, int64_t tokens, std::span<char> out) const;
  void load(std::span<const char> bytes, int64_t tokens, int32_t slot, std::span<const int32_t> pages);

  // Fills every slot and page that nobody holds with NaN bytes: a test of isolation, at any moment.
  void poison_free();

 private:
  struct Part {
    StateKind kind;
    SlotRule rule;
    char* data;
    int64_t bytes;      // of one slot or page
    int64_t row_bytes;  // of one row of its first axis
    int64_t settled;    // bytes of a slot that matter when accepted = 1
    char* at(int32_t number) const { return data + number * bytes; }
  };
  static PoolSize existing(const LayerStates& layers, PoolSize size);
  void copy(void* to, const void* from, int64_t bytes) const;
  template <class F>
  void each_piece(int32_t slot, std::span<const int32_t> pages, int64_t tokens, const F& f) const;

  PoolSize size_;
  Replay replay_;
  Stream* stream_;
  bool replays_ = false;  // some state is of SlotRule::replay
  std::vector<Buffer> buffers_;
  std::vector<Part> parts_;
  std::vector<Move> moves_;  // of one call: room for one per part
  std::vector<std::vector<AnyView>> views_;
  std::vector<int32_t> free_slots_, free_draft_slots_, free_pages_;
  std::vector<int> owners_;      // by page
  std::vector<uint8_t> cached_;  // by page
  int64_t cached_pages_ = 0;     // that have one owner
};

}  // namespace kdelta::runtime
