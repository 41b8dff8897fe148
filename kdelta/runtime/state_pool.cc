#include "kdelta/runtime/state_pool.h"

#include <algorithm>
#include <cstring>

#include "kdelta/core/check.h"

namespace kdelta::runtime {
namespace {

Shape pooled(int64_t count, const Shape& one) {
  Shape s;
  s.rank = one.rank + 1;
  s.dim[0] = count;
  for (int i = 0; i < one.rank; ++i) s.dim[static_cast<size_t>(i) + 1] = one[i];
  return s;
}

// Highest first, so that take() hands out the lowest number.
std::vector<int32_t> numbers(int64_t first, int64_t last) {
  std::vector<int32_t> all;
  all.reserve(static_cast<size_t>(std::max<int64_t>(0, last - first + 1)));
  for (int64_t i = last; i >= first; --i) all.push_back(static_cast<int32_t>(i));
  return all;
}

int32_t take(std::vector<int32_t>& free, const char* what) {
  KDELTA_CHECK(!free.empty(), "no free ", what);
  const int32_t number = free.back();
  free.pop_back();
  return number;
}

// Bytes of a slot or page that matter when accepted = 1.
int64_t settled_bytes(const StateSpec& s, int64_t columns) {
  if (s.kind == StateKind::page) return s.bytes();
  switch (s.rule) {
    case SlotRule::column:
    case SlotRule::replay:
      return s.bytes();
    case SlotRule::window:
      return s.bytes() - (columns - 1) * (s.bytes() / s.shape[0]);
    case SlotRule::record:
      return 0;
  }
  KDELTA_UNREACHABLE("slot rule", s.rule);
}

}  // namespace

PoolSize StatePool::existing(const LayerStates& layers, PoolSize size) {
  if (draft_slot_bytes(layers) == 0) size.draft_slots = 0;
  return size;
}

StatePool::StatePool(Device device, const LayerStates& layers, const PoolSize& wanted, Replay replay, Stream* stream)
    : size_(existing(layers, wanted)),
      replay_(std::move(replay)),
      stream_(stream),
      free_slots_(numbers(1, size_.slots)),
      free_draft_slots_(numbers(size_.slots + 1, size_.slots + size_.draft_slots)),
      free_pages_(numbers(1, size_.pages)),
      owners_(static_cast<size_t>(size_.pages + 1)),
      cached_(static_cast<size_t>(size_.pages + 1)) {
  for (const auto& layer : layers) {
    std::vector<AnyView> row;
    for (const StateSpec& s : layer) {
      const int64_t count = pool_count(s, size_);
      buffers_.emplace_back(device, count * s.bytes());
      row.push_back(buffers_.back().view(s.dtype, pooled(count, s.shape)));
      parts_.push_back({s.kind, s.rule, static_cast<char*>(buffers_.back().data()), s.bytes(), s.bytes() / s.shape[0],
                        settled_bytes(s, size_.columns)});
      replays_ = replays_ || (s.kind == StateKind::slot && s.rule == SlotRule::replay);
    }
    views_.push_back(std::move(row));
  }
  KDELTA_CHECK((device.kind == DeviceKind::cuda) == (stream != nullptr), "a pool on ", to_string(device));
  moves_.reserve(parts_.size());
}

int32_t StatePool::take_slot() {
  return take(free_slots_, "state slot");
}
int32_t StatePool::take_draft_slot() {
  return take(free_draft_slots_, "draft slot");
}
int32_t StatePool::take_page() {
  const int32_t page = take(free_pages_, "page");
  owners_[static_cast<size_t>(page)] = 1;
  return page;
}

void StatePool::give_back_slot(int32_t slot) {
  (slot <= size_.slots ? free_slots_ : free_draft_slots_).push_back(slot);
}

void StatePool::give_back_slots(std::vector<int32_t>& slots) {
  for (int32_t s : slots) give_back_slot(s);
  slots.clear();
}

void StatePool::share_page(int32_t page) {
  int& owners = owners_[static_cast<size_t>(page)];
  KDELTA_CHECK(owners > 0, "page ", page, " belongs to nobody");
  if (++owners == 2) cached_pages_ -= cached_[static_cast<size_t>(page)];
}

void StatePool::drop_page(int32_t page) {
  int& owners = owners_[static_cast<size_t>(page)];
  KDELTA_CHECK(owners > 0, "page ", page, " belongs to nobody");
  if (--owners == 1) cached_pages_ += cached_[static_cast<size_t>(page)];
  if (owners == 0) free_pages_.push_back(page);
}

void StatePool::set_cached(int32_t page, bool cached) {
  KDELTA_CHECK(page_owners(page) > 0 && (cached_[static_cast<size_t>(page)] != 0) != cached, "page ", page);
  cached_[static_cast<size_t>(page)] = cached ? 1 : 0;
  if (page_owners(page) == 1) cached_pages_ += cached ? 1 : -1;
}

int64_t StatePool::list_bytes(const PoolSize& size) {
  return 4 * (size.slots + size.draft_slots) + 9 * (size.pages + 1);
}

void StatePool::drop_pages(std::vector<int32_t>& pages) {
  for (int32_t p : pages) drop_page(p);
  pages.clear();
}

void StatePool::settle(std::span<const int32_t> slots, int32_t accepted, int32_t to) {
  const int64_t columns = has_draft_slots() ? static_cast<int64_t>(slots.size()) : size_.columns;
  KDELTA_CHECK(accepted >= 1 && accepted <= columns, "accepted ", accepted, " of ", columns, " columns");
  KDELTA_CHECK(to >= 1 && to <= size_.slots, "slot ", to, " is no home slot");
  const int64_t ahead = accepted - 1;
  moves_.clear();
  for (const Part& p : parts_) {
    if (p.kind != StateKind::slot) continue;
    const char* from = p.at(slots[p.rule == SlotRule::column ? static_cast<size_t>(ahead) : 0]);
    if (p.rule == SlotRule::window) from += ahead * p.row_bytes;
    const int64_t bytes = p.rule == SlotRule::record ? ahead * p.row_bytes : p.settled;
    if (from != p.at(to)) moves_.push_back({p.at(to), from, bytes});
  }
  move_bytes(stream_, moves_);
  if (!replays_ || ahead == 0) return;
  KDELTA_CHECK(replay_ != nullptr, "nobody to replay ", ahead, " records");
  replay_(to, accepted);
}

void StatePool::copy_page(int32_t from, int32_t to) {
  moves_.clear();
  for (const Part& p : parts_)
    if (p.kind == StateKind::page && from != to) moves_.push_back({p.at(to), p.at(from), p.bytes});
  move_bytes(stream_, moves_);
}

// f(address, bytes) for everything that belongs to a sequence, in the order of the specs.
template <class F>
void StatePool::each_piece(int32_t slot, std::span<const int32_t> pages, int64_t tokens, const F& f) const {
  for (const Part& p : parts_) {
    if (p.kind == StateKind::slot) {
      f(p.at(slot), p.settled);
      continue;
    }
    const int64_t page_tokens = p.bytes / p.row_bytes;
    KDELTA_CHECK(static_cast<int64_t>(pages.size()) >= pages_for(tokens, page_tokens), tokens, " tokens on ",
                 pages.size(), " pages");
    for (int64_t done = 0; done < tokens; done += page_tokens)
      f(p.at(pages[static_cast<size_t>(done / page_tokens)]), std::min(page_tokens, tokens - done) * p.row_bytes);
  }
}

void StatePool::copy(void* to, const void* from, int64_t bytes) const {
  if (stream_ != nullptr)
    copy_async(*stream_, to, from, bytes);
  else
    std::memcpy(to, from, static_cast<size_t>(bytes));
}

int64_t StatePool::saved_bytes(int64_t tokens) const {
  int64_t bytes = 0;
  for (const Part& p : parts_) bytes += p.kind == StateKind::slot ? p.settled : tokens * p.row_bytes;
  return bytes;
}

void StatePool::save(int32_t slot, std::span<const int32_t> pages, int64_t tokens, std::span<char> out) const {
  KDELTA_CHECK(static_cast<int64_t>(out.size()) == saved_bytes(tokens));
  char* at = out.data();
  each_piece(slot, pages, tokens, [&](const char* piece, int64_t bytes) {
    copy(at, piece, bytes);
    at += bytes;
  });
  if (stream_ != nullptr) stream_->synchronize();
}

void StatePool::load(std::span<const char> bytes, int64_t tokens, int32_t slot, std::span<const int32_t> pages) {
  KDELTA_CHECK(static_cast<int64_t>(bytes.size()) == saved_bytes(tokens));
  const char* at = bytes.data();
  each_piece(slot, pages, tokens, [&](char* piece, int64_t size) {
    copy(piece, at, size);
    at += size;
  });
  if (stream_ != nullptr) stream_->synchronize();
}

void StatePool::poison_free() {
  for (const Part& p : parts_) {
    const auto fill = [&](int32_t number) {
      constexpr uint8_t kNan = 0xff;  // in every float type
      if (stream_ != nullptr)
        fill_async(*stream_, p.at(number), kNan, p.bytes);
      else
        std::memset(p.at(number), kNan, static_cast<size_t>(p.bytes));
    };
    fill(0);
    for (int32_t n : p.kind == StateKind::page ? free_pages_ : free_slots_) fill(n);
    if (p.kind == StateKind::slot && p.rule == SlotRule::column)
      for (int32_t n : free_draft_slots_) fill(n);
  }
}

}  // namespace kdelta::runtime
