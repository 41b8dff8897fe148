// Blocks of 32 floats to MX codes and back, over any V of simd.h: integer arithmetic on the bits of floats, exact, so
// every instruction set gives the same codes.
#pragma once

#include <algorithm>
#include <cstring>

#include "kdelta/core/matrix.h"
#include "kdelta/ops/common/cpu/dequantize.h"
#include "kdelta/ops/common/cpu/int_lanes.h"
#include "kdelta/ops/common/cpu/parallel.h"

namespace kdelta {

// An element format as float bits see it. Normal numbers begin at 2^least, `largest` are the bits of the largest value.
template <int kMantissaBits, int kLeast, int kLargestExponent, uint32_t kLargestBits, int kSignBit>
struct MxElement {
  static constexpr int mantissa = kMantissaBits, least = kLeast, emax = kLargestExponent, sign_bit = kSignBit;
  static constexpr int32_t largest = static_cast<int32_t>(kLargestBits);
};
using MxE4m3 = MxElement<3, -6, 8, 0x43e00000u, 7>;
using MxE5m2 = MxElement<2, -14, 15, 0x47600000u, 7>;
using MxE2m1 = MxElement<1, 0, 2, 0x40c00000u, 3>;

// What is added to the bits of amax so that its exponent field rises by one exactly when the rule says so.
template <class F>
KDELTA_INLINE uint32_t scale_bump(MxScaleRule rule) {
  constexpr uint32_t kMantissa = 0x7fffffu;
  if (rule == MxScaleRule::rceil) return kMantissa - (static_cast<uint32_t>(F::largest) & kMantissa);
  return rule == MxScaleRule::even ? 1u << (22 - F::mantissa) : 0;
}

// `amax`: bits of the largest magnitude of a block, `bump` from scale_bump. Fields up to emax give 2^-127.
template <class F>
KDELTA_INLINE uint8_t scale_byte(uint32_t amax, uint32_t bump) {
  if (amax >= 0x7f800000u) return 255;
  const int32_t field = static_cast<int32_t>((amax + bump) >> 23) - F::emax;
  return static_cast<uint8_t>(field > 0 ? field : 0);
}

template <class V>
struct MxVector : IntLanes<V> {
  using typename IntLanes<V>::Ints;
  using typename IntLanes<V>::Floats;
  using IntLanes<V>::bits;
  static constexpr int kLanes = V::kLanes, kVectors = kMxBlock / V::kLanes;

  // Bits of the block's largest magnitude.
  template <class In>
  static KDELTA_INLINE uint32_t amax_bits(const In* x) {
    Ints most = IntLanes<V>::magnitude(V::load(x));
    for (int i = 1; i < kVectors; ++i) most = IntLanes<V>::max(most, IntLanes<V>::magnitude(V::load(x + i * kLanes)));
    return static_cast<uint32_t>(IntLanes<V>::max_lane(most));
  }

  // Codes, one in each lane, of finite x.
  template <class F>
  static KDELTA_INLINE Ints codes(V x) {
    constexpr int kShift = 23 - F::mantissa;
    constexpr int32_t kSign = 1 << F::sign_bit, kLeastBits = (127 + F::least) << 23;
    constexpr float kMagic = std::bit_cast<float>((127 + kShift + F::least) << 23);
    const Ints u = bits(x);
    Ints a = u & 0x7fffffff;
    a = a < F::largest ? a : a * 0 + F::largest;
    const Ints rounded = (a + ((1 << (kShift - 1)) - 1) + ((a >> kShift) & 1)) >> kShift;
    const Ints normal = rounded - ((126 + F::least) << F::mantissa);
    // Beside 2^23 steps of the subnormals a float counts these steps in its mantissa, rounded to nearest even.
    const Floats magic = V::set1(kMagic).v;
    const Ints subnormal = reinterpret_cast<Ints>(reinterpret_cast<Floats>(a) + magic) - std::bit_cast<int32_t>(kMagic);
    return (a < kLeastBits ? subnormal : normal) | ((u >> (31 - F::sign_bit)) & kSign);
  }
};

// 32 elements to 32 bytes of FP8 codes or 16 bytes of FP4 codes; the scale byte is returned.
template <class V, class F, class In>
KDELTA_INLINE uint8_t quantise_block(const In* x, uint32_t bump, uint8_t* out) {
  using M = MxVector<V>;
  const uint8_t scale = scale_byte<F>(M::amax_bits(x), bump);
  constexpr int kBytes = F::sign_bit == 3 ? kMxBlock / 2 : kMxBlock;
  if (scale == 255) {
    std::memset(out, 0, kBytes);
    return scale;
  }
  // 2^-E = 2^(127 - scale), a normal float for every scale that a finite amax can have.
  const V factor = V::set1(std::bit_cast<float>((254u - scale) << 23));
  for (int i = 0; i < M::kVectors; ++i) {
    const auto codes = M::template codes<F>(V::load(x + i * M::kLanes) * factor);
    if constexpr (F::sign_bit == 3)
      M::store_nibbles(codes, out + i * M::kLanes / 2);
    else
      M::store_bytes(codes, out + i * M::kLanes);
  }
  return scale;
}

// kLanes values of FP8 codes: the code's exponent and mantissa put in their places in a float, which is the value but
// for subnormal codes, whose hidden one is taken off again, and for infinities and NaN.
template <class V, class F>
KDELTA_INLINE V fp8_values_of(const uint8_t* codes) {
  using M = MxVector<V>;
  constexpr int32_t kFirstNormal = 1 << F::mantissa;
  constexpr bool kHasInfinity = F::mantissa == 2;
  constexpr float kHidden = std::bit_cast<float>((126 + F::least) << 23);  // 2^(least - 1)
  const auto c = M::load_bytes(codes), a = c & 0x7f;
  const auto placed = (a << (23 - F::mantissa)) + ((126 + F::least) << 23);
  const V value{reinterpret_cast<typename M::Floats>(placed)}, less = value - V::set1(kHidden);
  auto bits = a < kFirstNormal ? M::bits(less + less) : placed;
  const auto nan = a * 0 + 0x7fc00000;
  if constexpr (kHasInfinity) bits = a == 0x7c ? a * 0 + 0x7f800000 : a > 0x7c ? nan : bits;
  if constexpr (!kHasInfinity) bits = a == 0x7f ? nan : bits;
  return V{reinterpret_cast<typename M::Floats>(bits | ((c & 0x80) << 24))};
}

// The values of one block of FP8 codes.
template <class V>
KDELTA_INLINE void fp8_block(DType format, const uint8_t* codes, float scale, float* out) {
  if constexpr (V::kLanes == 4) {  // four lanes of arithmetic are slower than a table
    const float* values = format == DType::f8_e4m3 ? kE4m3Values.data() : kE5m2Values.data();
    for (int i = 0; i < kMxBlock; ++i) out[i] = values[codes[i]];
    return scale_block<V>(out, scale);
  }
  const V s = V::set1(scale);
  for (int i = 0; i < kMxBlock; i += V::kLanes)
    ((format == DType::f8_e4m3 ? fp8_values_of<V, MxE4m3>(codes + i) : fp8_values_of<V, MxE5m2>(codes + i)) * s)
        .store(out + i);
}

// 8192 columns are 24 KB of traffic in bf16: long enough to hide the hand-out.
inline constexpr int64_t kMxTile = 8192;

// f(row, first column, columns) over the rows in tiles of whole pairs of blocks, so that a wide single row (decode)
// still feeds every thread.
template <class F>
void for_mx_tiles(const Exec& ex, int64_t rows, int64_t N, const F& f) {
  const int64_t tiles = (N + kMxTile - 1) / kMxTile;
  parallel_for(ex, rows * tiles, kMxTile / std::clamp<int64_t>(N, 1, kMxTile), [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      const int64_t c = p % tiles * kMxTile;
      f(p / tiles, c, std::min(kMxTile, N - c));
    }
  });
}

}  // namespace kdelta
