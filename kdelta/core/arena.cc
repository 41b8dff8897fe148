#include "kdelta/core/arena.h"

#include <algorithm>

#include "kdelta/core/check.h"

namespace kdelta {

Arena::Arena(Device device, int64_t bytes) : buffer_(device, bytes) {}

Arena Arena::measuring(Device) {
  Arena a;
  a.measuring_ = true;
  return a;
}

void* Arena::take(int64_t bytes) {
  KDELTA_CHECK(bytes >= 0, "take ", bytes);
  const int64_t begin = used_;
  const int64_t end = begin + (bytes + kAlign - 1) / kAlign * kAlign;
  if (!measuring_ && end > buffer_.bytes())
    fail(ErrorCode::out_of_memory, "scratch arena of ", buffer_.bytes(), " bytes cannot lend ", bytes, " more (", begin,
         " in use)");
  used_ = end;
  peak_ = std::max(peak_, end);
  // A measuring arena's addresses are real numbers, never dereferenced; offset by kAlign so that none is null.
  if (measuring_) return reinterpret_cast<void*>(kAlign + begin);
  return static_cast<char*>(buffer_.data()) + begin;
}

}  // namespace kdelta
