// The two 16-bit operand formats of the chunk schedule. Both multiply pairs of 16-bit numbers and add into 32-bit lanes
// at twice the fp32 rate (vpdpwssd, vdpbf16ps). Fixed: int16 scaled by the Euclidean norm of the vector that a dot
// product runs over. By Cauchy and Schwarz a sum of products is below 2^30, and its error is 1.3e-5 of the product of
// the norms: about eight bits better than bf16 at the same price. Bfloat: bf16, no scale. dot() is assembly because g++
// 12 copies every accumulator around the intrinsics (a third of the kernel's time).
#pragma once

#include "kdelta/ops/kda/cpu_inputs.h"

namespace kdelta::kda_chunk {
inline namespace KDELTA_KDA_ISA {

using V = simd::Avx512;

// Behind a lambda's parameters: it must not become a call, which would move registers to memory.
#define KDELTA_FLAT __attribute__((always_inline))

// f(0), f(1), ..., f(n - 1) with constants: arrays of registers stay in registers only if every index is known before
// g++ decides where they live.
template <int64_t i>
using Index = std::integral_constant<int64_t, i>;
template <int64_t n, class F>
KDELTA_INLINE void unroll(F&& f) {
  [&]<int64_t... i>(std::integer_sequence<int64_t, i...>) KDELTA_FLAT {
    (f(Index<i>{}), ...);
  }
  (std::make_integer_sequence<int64_t, n>{});
}

KDELTA_INLINE void transpose16(__m512i r[16]) {
  __m512i a[16];
  for (int i = 0; i < 16; i += 2) {
    a[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    a[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4)
    for (int j = 0; j < 2; ++j) {
      r[i + 2 * j] = _mm512_unpacklo_epi64(a[i + j], a[i + 2 + j]);
      r[i + 2 * j + 1] = _mm512_unpackhi_epi64(a[i + j], a[i + 2 + j]);
    }
  // r[4g + c]: in each 128-bit lane l, column 4l + c of rows 4g .. 4g + 3.
  for (int c = 0; c < 4; ++c) {
    const __m512i t0 = _mm512_shuffle_i32x4(r[c], r[4 + c], 0x88), t1 = _mm512_shuffle_i32x4(r[c], r[4 + c], 0xdd);
    const __m512i t2 = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0x88),
                  t3 = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0xdd);
    a[c] = _mm512_shuffle_i32x4(t0, t2, 0x88);
    a[4 + c] = _mm512_shuffle_i32x4(t1, t3, 0x88);
    a[8 + c] = _mm512_shuffle_i32x4(t0, t2, 0xdd);
    a[12 + c] = _mm512_shuffle_i32x4(t1, t3, 0xdd);
  }
  for (int i = 0; i < 16; ++i) r[i] = a[i];
}

struct Fixed {
  using Acc = __m512i;
  static constexpr bool kScaled = true;
  static KDELTA_INLINE Acc zero() { return _mm512_setzero_si512(); }
  static KDELTA_INLINE Acc dot(Acc acc, __m512i a, __m512i b) {
    asm("vpdpwssd %2, %1, %0" : "+v"(acc) : "v"(a), "v"(b));
    return acc;
  }
  static KDELTA_INLINE V value(Acc acc) { return {_mm512_cvtepi32_ps(acc)}; }
  // Units per 1, from a sum of squares: 32760 over the norm. Norms below 2^-60 share a unit, so that no square
  // underflows into a wrong scale; norms from 2^64 on give NaN. max keeps a NaN in its second operand, so it reaches
  // the result.
  static KDELTA_INLINE V exact_scale(V sum) { return V::set1(32760.0f) / V::max(V::set1(0x1p-120f), sum).sqrt(); }
  // The same without waiting for a root and a division, less by up to 2e-4.
  static KDELTA_INLINE V scale(V sum) {
    return V{_mm512_rsqrt14_ps(V::max(V::set1(0x1p-120f), sum).v)} * V::set1(32757.0f);
  }
  // What one unit is worth.
  static KDELTA_INLINE V inverse(V scale) { return V::set1(1.0f) / scale; }
  // Two vectors of one row to 32 numbers in memory: pack works in 128-bit lanes, hence the order of channel().
  static KDELTA_INLINE __m512i row(V a, V b, V scale) {
    return _mm512_packs_epi32(_mm512_cvtps_epi32((a * scale).v), _mm512_cvtps_epi32((b * scale).v));
  }
  // The same lane of two rows to one pair. A number at 1.5 2^23 has its integer part in its low bits, so the sum with
  // it rounds and converts at once.
  static KDELTA_INLINE __m512i pair(V even, V odd, V scale) {
    const V at = V::set1(12582912.0f);
    const __m512i e = _mm512_castps_si512(V::fma(even, scale, at).v), o = _mm512_castps_si512(V::fma(odd, scale, at).v);
    return _mm512_mask_blend_epi16(0xaaaaaaaau, e, _mm512_slli_epi32(o, 16));
  }
  // First channel of the m-th pair of a group of 32 that row() wrote.
  static constexpr int64_t channel(int64_t m) {
    return m % 4 < 2 ? 4 * (m / 4) + 2 * (m % 4) : 16 + 4 * (m / 4) + 2 * (m % 4 - 2);
  }
};

struct Bfloat {
  using Acc = __m512;
  static constexpr bool kScaled = false;
  static KDELTA_INLINE Acc zero() { return _mm512_setzero_ps(); }
  static KDELTA_INLINE Acc dot(Acc acc, __m512i a, __m512i b) {
    asm("vdpbf16ps %2, %1, %0" : "+v"(acc) : "v"(a), "v"(b));
    return acc;
  }
  static KDELTA_INLINE V value(Acc acc) { return {acc}; }
  static KDELTA_INLINE V exact_scale(V) { return V::set1(1.0f); }
  static KDELTA_INLINE V scale(V) { return V::set1(1.0f); }
  static KDELTA_INLINE V inverse(V) { return V::set1(1.0f); }
  static KDELTA_INLINE __m512i row(V a, V b, V) { return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b.v, a.v)); }
  static KDELTA_INLINE __m512i pair(V even, V odd, V) {
    const __m512i both = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(odd.v, even.v));
    const __m512i low = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(both));
    const __m512i high = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(both, 1));
    return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
  }
  static constexpr int64_t channel(int64_t m) { return 2 * m; }
};

}  // namespace KDELTA_KDA_ISA
}  // namespace kdelta::kda_chunk
