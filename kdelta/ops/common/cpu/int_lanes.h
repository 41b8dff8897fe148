// The bits of a vector of floats as integers, for what simd.h leaves out: exact comparisons that order NaN too, and
// narrow stores.
#pragma once

#include <cstring>

#include "kdelta/ops/common/cpu/simd.h"

namespace kdelta {

// 32-bit integers, one for each lane. Written out: g++ 12 forgets a vector size that depends on a parameter.
template <int kLanes>
struct IntVector;
template <>
struct IntVector<4> {
  typedef int32_t Type __attribute__((vector_size(16)));
};
template <>
struct IntVector<8> {
  typedef int32_t Type __attribute__((vector_size(32)));
};
template <>
struct IntVector<16> {
  typedef int32_t Type __attribute__((vector_size(64)));
};

template <class V>
struct IntLanes {
  static constexpr int kLanes = V::kLanes;
  using Ints = typename IntVector<kLanes>::Type;
  using Floats = decltype(V::v);

  static KDELTA_INLINE Ints bits(V x) { return reinterpret_cast<Ints>(x.v); }
  // Magnitudes as integers: their order is that of the floats, with NaN above infinity.
  static KDELTA_INLINE Ints magnitude(V x) { return bits(x) & 0x7fffffff; }
  static KDELTA_INLINE Ints max(Ints a, Ints b) { return a > b ? a : b; }
  // Nearest integers, ties to even, of |x| < 2^22.
  static KDELTA_INLINE Ints nearest(V x) {
    constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23 leaves integers in the low bits
    return bits(x + V::set1(kMagic)) - std::bit_cast<int32_t>(kMagic);
  }

  // Of values that are not negative.
  static KDELTA_INLINE int32_t max_lane(Ints v) {
#if defined(__AVX512F__) && defined(__AVX512BW__)
    if constexpr (kLanes == 16) return _mm512_reduce_max_epi32(reinterpret_cast<__m512i>(v));
#endif
#if defined(__AVX2__)
    if constexpr (kLanes == 8) {
      const __m256i x = reinterpret_cast<__m256i>(v);
      __m128i m = _mm_max_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
      m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
      return _mm_cvtsi128_si32(_mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1)));
    }
#endif
    int32_t lanes[kLanes], most = 0;
    std::memcpy(lanes, &v, sizeof(lanes));
    for (int i = 0; i < kLanes; ++i) most = lanes[i] > most ? lanes[i] : most;
    return most;
  }

  // kLanes bytes, one in each lane.
  static KDELTA_INLINE Ints load_bytes(const uint8_t* p) {
#if defined(__AVX512F__) && defined(__AVX512BW__)
    if constexpr (kLanes == 16)
      return reinterpret_cast<Ints>(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#endif
#if defined(__AVX2__)
    if constexpr (kLanes == 8)
      return reinterpret_cast<Ints>(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
#endif
    Ints v;
    for (int i = 0; i < kLanes; ++i) v[i] = p[i];
    return v;
  }

  // Two values of 0..15 in each byte, the even lane's low: kLanes / 2 bytes.
  static KDELTA_INLINE void store_nibbles(Ints v, uint8_t* out) {
#if defined(__AVX512F__) && defined(__AVX512BW__)
    if constexpr (kLanes == 16) {
      const __m512i x = reinterpret_cast<__m512i>(v), pairs = _mm512_or_si512(x, _mm512_srli_epi64(x, 28));
      _mm_storel_epi64(reinterpret_cast<__m128i*>(out), _mm512_cvtepi64_epi8(pairs));
      return;
    }
#endif
#if defined(__AVX2__)
    if constexpr (kLanes == 8) {
      const __m256i x = reinterpret_cast<__m256i>(v), pairs = _mm256_or_si256(x, _mm256_srli_epi64(x, 28));
      const __m256i bytes = _mm256_shuffle_epi8(pairs, _mm256_set1_epi64x(0x0800));  // two, repeated, in each half
      const __m128i both = _mm_unpacklo_epi16(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1));
      const int32_t four = _mm_cvtsi128_si32(both);
      std::memcpy(out, &four, sizeof(four));
      return;
    }
#endif
    for (int i = 0; i < kLanes; i += 2) out[i / 2] = static_cast<uint8_t>(v[i] | v[i + 1] << 4);
  }

  // The low bytes of values in 0..255.
  static KDELTA_INLINE void store_bytes(Ints v, uint8_t* out) {
#if defined(__AVX512F__) && defined(__AVX512BW__)
    if constexpr (kLanes == 16) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm512_cvtepi32_epi8(reinterpret_cast<__m512i>(v)));
      return;
    }
#endif
#if defined(__AVX2__)
    if constexpr (kLanes == 8) {
      const __m256i x = reinterpret_cast<__m256i>(v), pairs = _mm256_packus_epi32(x, x);  // within 128-bit halves
      const __m256i bytes = _mm256_packus_epi16(pairs, pairs);
      const __m128i both = _mm_unpacklo_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1));
      _mm_storel_epi64(reinterpret_cast<__m128i*>(out), both);
      return;
    }
#endif
    for (int i = 0; i < kLanes; ++i) out[i] = static_cast<uint8_t>(v[i]);
  }
};

}  // namespace kdelta
