#include "kdelta/runtime/state_pool.h"

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

int64_t bytes_of(const std::vector<std::vector<StateSpec>>& layers, StateKind kind) {
  int64_t bytes = 0;
  for (const auto& layer : layers)
    for (const StateSpec& s : layer)
      if (s.kind == kind) bytes += s.bytes();
  return bytes;
}

// Highest first, so that take() hands out the lowest number.
std::vector<int32_t> numbers(int64_t count) {
  std::vector<int32_t> all;
  for (int64_t i = count; i >= 1; --i) all.push_back(static_cast<int32_t>(i));
  return all;
}

int32_t take(std::vector<int32_t>& free, const char* what) {
  KDELTA_CHECK(!free.empty(), "no free ", what);
  const int32_t number = free.back();
  free.pop_back();
  return number;
}

}  // namespace

StatePool::StatePool(Device device, const std::vector<std::vector<StateSpec>>& layers, int64_t slots, int64_t pages)
    : specs_(layers), free_slots_(numbers(slots)), free_pages_(numbers(pages)) {
  for (const auto& layer : layers) {
    std::vector<AnyView> row;
    for (const StateSpec& s : layer) {
      const int64_t count = (s.kind == StateKind::slot ? slots : pages) + 1;
      buffers_.emplace_back(device, count * s.bytes());
      row.push_back(buffers_.back().view(s.dtype, pooled(count, s.shape)));
    }
    views_.push_back(std::move(row));
  }
}

int64_t StatePool::slot_bytes(const std::vector<std::vector<StateSpec>>& layers) {
  return bytes_of(layers, StateKind::slot);
}
int64_t StatePool::page_bytes(const std::vector<std::vector<StateSpec>>& layers) {
  return bytes_of(layers, StateKind::page);
}

int64_t StatePool::total_bytes(Device device, const std::vector<std::vector<StateSpec>>& layers, StateKind kind,
                               int64_t count) {
  int64_t bytes = 0;
  for (const auto& layer : layers)
    for (const StateSpec& s : layer)
      if (s.kind == kind) bytes += device_bytes(device, (count + 1) * s.bytes());
  return bytes;
}

int32_t StatePool::take_slot() {
  return take(free_slots_, "state slot");
}
int32_t StatePool::take_page() {
  return take(free_pages_, "page");
}

void StatePool::give_back_slots(std::vector<int32_t>& slots) {
  for (int32_t s : slots) free_slots_.push_back(s);
  slots.clear();
}

void StatePool::give_back_pages(std::vector<int32_t>& pages) {
  for (int32_t p : pages) free_pages_.push_back(p);
  pages.clear();
}

void StatePool::poison_free() {
  for (size_t l = 0; l < specs_.size(); ++l) {
    for (size_t i = 0; i < specs_[l].size(); ++i) {
      const int64_t bytes = specs_[l][i].bytes();
      const auto fill = [&](int32_t number) {
        std::memset(static_cast<char*>(views_[l][i].data) + number * bytes, 0xff,
                    static_cast<size_t>(bytes));  // NaN in every float type
      };
      fill(0);
      for (int32_t n : specs_[l][i].kind == StateKind::slot ? free_slots_ : free_pages_) fill(n);
    }
  }
}

}  // namespace kdelta::runtime
