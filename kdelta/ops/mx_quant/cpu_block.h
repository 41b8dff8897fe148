// Blocks of 32 floats to MX codes, over any V of simd.h: integer arithmetic on the bits of floats, exact, so every
// instruction set gives the same codes.
#pragma once

#include <cstring>

#include "kdelta/core/matrix.h"
#include "kdelta/ops/common/cpu/simd.h"
#include "kdelta/ops/mx_quant/mx_quant.h"

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

// 32-bit integers, one for each lane. Written out: g++ 12 forgets a vector size that depends on a parameter.
template <int kLanes>
struct IntLanes;
template <>
struct IntLanes<4> {
  typedef int32_t Type __attribute__((vector_size(16)));
};
template <>
struct IntLanes<8> {
  typedef int32_t Type __attribute__((vector_size(32)));
};
template <>
struct IntLanes<16> {
  typedef int32_t Type __attribute__((vector_size(64)));
};

template <class V>
struct MxVector {
  static constexpr int kLanes = V::kLanes, kVectors = kMxBlock / V::kLanes;
  using Ints = typename IntLanes<kLanes>::Type;
  using Floats = decltype(V::v);

  static KDELTA_INLINE Ints bits(V x) { return reinterpret_cast<Ints>(x.v); }

  // Largest of the magnitudes as integers: their order is that of the floats, with NaN above infinity.
  template <class In>
  static KDELTA_INLINE uint32_t amax_bits(const In* x) {
    Ints most = bits(V::load(x)) & 0x7fffffff;
    for (int i = 1; i < kVectors; ++i) {
      const Ints a = bits(V::load(x + i * kLanes)) & 0x7fffffff;
      most = most > a ? most : a;
    }
    return static_cast<uint32_t>(max_lane(most));
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

  static KDELTA_INLINE void store_bytes(Ints codes, uint8_t* out) {
#if defined(__AVX512F__) && defined(__AVX512BW__)
    if constexpr (kLanes == 16) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm512_cvtepi32_epi8(reinterpret_cast<__m512i>(codes)));
      return;
    }
#endif
#if defined(__AVX2__)
    if constexpr (kLanes == 8) {
      const __m256i v = reinterpret_cast<__m256i>(codes), pairs = _mm256_packus_epi32(v, v);  // within 128-bit halves
      const __m256i bytes = _mm256_packus_epi16(pairs, pairs);
      const __m128i both = _mm_unpacklo_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1));
      _mm_storel_epi64(reinterpret_cast<__m128i*>(out), both);
      return;
    }
#endif
    for (int i = 0; i < kLanes; ++i) out[i] = static_cast<uint8_t>(codes[i]);
  }

 private:
  static KDELTA_INLINE int32_t max_lane(Ints v) {
#if defined(__AVX512F__) && defined(__AVX512BW__)
    if constexpr (kLanes == 16) return _mm512_reduce_max_epi32(reinterpret_cast<__m512i>(v));
#endif
    int32_t lanes[kLanes], most = 0;
    std::memcpy(lanes, &v, sizeof(lanes));
    for (int i = 0; i < kLanes; ++i) most = lanes[i] > most ? lanes[i] : most;
    return most;
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
  uint8_t wide[kMxBlock];
  uint8_t* bytes = F::sign_bit == 3 ? wide : out;
  for (int i = 0; i < M::kVectors; ++i)
    M::store_bytes(M::template codes<F>(V::load(x + i * M::kLanes) * factor), bytes + i * M::kLanes);
  if constexpr (F::sign_bit == 3)
    for (int i = 0; i < kBytes; ++i) out[i] = static_cast<uint8_t>(wide[2 * i] | wide[2 * i + 1] << 4);
  return scale;
}

}  // namespace kdelta
