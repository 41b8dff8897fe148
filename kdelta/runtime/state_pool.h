// Owns what all requests remember: slots (recurrent state, convolution window) and pages (latents), sized from
// StateSpecs without knowing their meaning. Slot 0 and page 0 belong to nobody. Memory is reserved once; what a slot or
// page held before is never cleared and never read (fresh sequences start from zero in the ops).
#pragma once

#include <span>
#include <vector>

#include "kdelta/core/buffer.h"
#include "kdelta/layers/spec.h"

namespace kdelta::runtime {

class StatePool {
 public:
  // slots and pages count the ones that can be handed out; one more of each is reserved.
  StatePool(Device device, const std::vector<std::vector<StateSpec>>& layers, int64_t slots, int64_t pages);

  // Bytes that a pool of this size takes, without making it.
  static int64_t slot_bytes(const std::vector<std::vector<StateSpec>>& layers);  // of one slot, all layers
  static int64_t page_bytes(const std::vector<std::vector<StateSpec>>& layers);  // of one page, all layers

  // What all buffers of a kind take for that many slots or pages that can be handed out, rounding of the allocator
  // included.
  static int64_t total_bytes(Device device, const std::vector<std::vector<StateSpec>>& layers, StateKind kind,
                             int64_t count);

  std::span<const std::vector<AnyView>> views() const { return views_; }

  int64_t free_slots() const { return static_cast<int64_t>(free_slots_.size()); }
  int64_t free_pages() const { return static_cast<int64_t>(free_pages_.size()); }
  // The caller has checked that one is free.
  int32_t take_slot();
  int32_t take_page();
  void give_back_slots(std::vector<int32_t>& slots);
  void give_back_pages(std::vector<int32_t>& pages);

  // Fills every slot and page that nobody holds with NaN bytes: a test of isolation, at any moment.
  void poison_free();

 private:
  std::vector<Buffer> buffers_;
  std::vector<std::vector<StateSpec>> specs_;
  std::vector<std::vector<AnyView>> views_;
  std::vector<int32_t> free_slots_, free_pages_;
};

}  // namespace kdelta::runtime
