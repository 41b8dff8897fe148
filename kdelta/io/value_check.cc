#include "kdelta/io/value_check.h"

#include <algorithm>
#include <cstring>

namespace kdelta {
namespace {

template <class T>
T load(const uint8_t* p) {
  T x;
  std::memcpy(&x, p, sizeof(x));
  return x;
}

// Counts in pieces without a branch, and looks for the first in the first piece that has one.
template <class T, class Bad>
NoNumbers find(const void* data, int64_t bytes, Bad bad) {
  constexpr int64_t kPiece = 4096, kSize = sizeof(T);
  const auto* p = static_cast<const uint8_t*>(data);
  NoNumbers found;
  for (int64_t begin = 0, n = bytes / kSize; begin < n; begin += kPiece) {
    const int64_t end = std::min(begin + kPiece, n);
    int64_t count = 0;
    for (int64_t i = begin; i < end; ++i) count += bad(load<T>(p + i * kSize)) ? 1 : 0;
    found.count += count;
    for (int64_t i = begin; count > 0 && found.first < 0; ++i)
      if (bad(load<T>(p + i * kSize))) found.first = i;
  }
  return found;
}

// All bits of the exponent are set.
template <class T>
NoNumbers find_exponent(const void* data, int64_t bytes, T exponent) {
  return find<T>(data, bytes, [exponent](T x) { return (x & exponent) == exponent; });
}

}  // namespace

NoNumbers find_no_numbers(DType dtype, const void* data, int64_t bytes) {
  switch (dtype) {
    case DType::f64:
      return find_exponent<uint64_t>(data, bytes, 0x7ff0000000000000u);
    case DType::f32:
      return find_exponent<uint32_t>(data, bytes, 0x7f800000u);
    case DType::bf16:
      return find_exponent<uint16_t>(data, bytes, 0x7f80u);
    case DType::f16:
      return find_exponent<uint16_t>(data, bytes, 0x7c00u);
    case DType::f8_e5m2:
      return find_exponent<uint8_t>(data, bytes, 0x7cu);
    case DType::f8_e4m3:  // has no infinity, and one NaN of each sign
      return find_exponent<uint8_t>(data, bytes, 0x7fu);
    case DType::f8_e8m0:
      return find<uint8_t>(data, bytes, [](uint8_t x) { return x == 255; });
    default:
      return {};
  }
}

}  // namespace kdelta
