#include "kdelta/core/arena.h"

#include <algorithm>

#include "kdelta/core/check.h"

namespace kdelta {

Arena::Arena(Device device, int64_t bytes)
    : buffer_(device, bytes), data_(static_cast<char*>(buffer_.data())), capacity_(bytes) {}

Arena::Arena(void* memory, int64_t bytes) : data_(static_cast<char*>(memory)), capacity_(bytes) {
  const auto past = static_cast<int64_t>(reinterpret_cast<uintptr_t>(memory) % kAlign);
  if (past == 0) return;
  const int64_t lost = std::min(kAlign - past, bytes);
  data_ += lost;
  capacity_ -= lost;
}

Arena Arena::measuring(Device) {
  Arena a;
  a.measuring_ = true;
  return a;
}

void* Arena::take(int64_t bytes) {
  KDELTA_CHECK(bytes >= 0, "take ", bytes);
  const int64_t begin = used_;
  const int64_t end = begin + (bytes + kAlign - 1) / kAlign * kAlign;
  if (!measuring_ && end > capacity_)
    fail(ErrorCode::out_of_memory, "scratch arena of ", capacity_, " bytes cannot lend ", bytes, " more (", begin,
         " in use)");
  used_ = end;
  peak_ = std::max(peak_, end);
  // A measuring arena's addresses are real numbers, never dereferenced; offset by kAlign so that none is null.
  if (measuring_) return reinterpret_cast<void*>(kAlign + begin);
  return data_ + begin;
}

}  // namespace kdelta
