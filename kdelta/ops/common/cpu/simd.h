// One vector type per instruction set with the same members, so that a kernel body is written once as a template over V
// and instantiated in cpu_portable.cc, cpu_avx2.cc and cpu_avx512.cc. A template instance carries the type in its
// symbol name, so the linker can never hand AVX-512 code to an older processor; plain helpers must be KDELTA_INLINE for
// the same reason.
//
// Members: kLanes; zero(), set1(x), load(p), load_n(p, n), store(p), store_n(p, n) for float and bf16 memory (no
// alignment needed; the _n forms touch only n elements, 1 <= n <= kLanes, and load zeros beyond), + - * /, fma(a, b, c)
// = a*b + c, min, max (the second operand when either is NaN), sqrt, abs, round() to nearest even below 2^22, pow2i() =
// 2^x for integers x in -126..127, ldexp(x, n) = x * 2^n for integers n in -252..254, sum() (fixed order), max_lane(),
// select_gt(a, b, x, y) = a > b ? x : y per lane, all_gt(a, b), store_pair(a, b, p) = two stores in a row (one cache
// line of bf16 in AVX-512). A store to bf16 is to_bf16 of dtype.h: ties to even, NaN stays NaN.
#pragma once

#include <cmath>
#include <cstring>

#include "kdelta/core/dtype.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace kdelta::simd {

// Four lanes of the compiler's own vector type: SSE2 on x86-64, NEON on ARM.
struct Portable {
  static constexpr int kLanes = 4;
  typedef float Raw __attribute__((vector_size(16)));
  typedef uint32_t Bits __attribute__((vector_size(16)));
  typedef uint16_t Half __attribute__((vector_size(8)));
  Raw v;

  static KDELTA_INLINE Portable zero() { return {Raw{}}; }
  static KDELTA_INLINE Portable set1(float x) { return {Raw{x, x, x, x}}; }
  static KDELTA_INLINE Portable load(const float* p) {
    Portable r;
    std::memcpy(&r.v, p, sizeof(r.v));
    return r;
  }
  static KDELTA_INLINE Portable load(const bf16* p) {
    Half h;
    std::memcpy(&h, p, sizeof(h));
    return {reinterpret_cast<Raw>(__builtin_convertvector(h, Bits) << 16)};
  }
  template <class T>
  static KDELTA_INLINE Portable load_n(const T* p, int64_t n) {
    T tmp[4] = {};
    std::memcpy(tmp, p, static_cast<size_t>(n) * sizeof(T));
    return load(tmp);
  }
  KDELTA_INLINE void store(float* p) const { std::memcpy(p, &v, sizeof(v)); }
  KDELTA_INLINE void store(bf16* p) const {
    const Bits u = reinterpret_cast<Bits>(v);
    const Bits rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16, quiet = (u >> 16) | 0x40u;
    const Half h = __builtin_convertvector(v == v ? rounded : quiet, Half);
    std::memcpy(p, &h, sizeof(h));
  }
  template <class T>
  static KDELTA_INLINE void store_pair(Portable a, Portable b, T* p) {
    a.store(p);
    b.store(p + kLanes);
  }
  template <class T>
  KDELTA_INLINE void store_n(T* p, int64_t n) const {
    T tmp[4];
    store(tmp);
    std::memcpy(p, tmp, static_cast<size_t>(n) * sizeof(T));
  }
  friend KDELTA_INLINE Portable operator+(Portable a, Portable b) { return {a.v + b.v}; }
  friend KDELTA_INLINE Portable operator-(Portable a, Portable b) { return {a.v - b.v}; }
  friend KDELTA_INLINE Portable operator*(Portable a, Portable b) { return {a.v * b.v}; }
  friend KDELTA_INLINE Portable operator/(Portable a, Portable b) { return {a.v / b.v}; }
  static KDELTA_INLINE Portable fma(Portable a, Portable b, Portable c) { return {a.v * b.v + c.v}; }
  static KDELTA_INLINE Portable min(Portable a, Portable b) { return {a.v < b.v ? a.v : b.v}; }
  static KDELTA_INLINE Portable max(Portable a, Portable b) { return {a.v > b.v ? a.v : b.v}; }
  static KDELTA_INLINE bool all_gt(Portable a, Portable b) {
    const auto m = a.v > b.v;
    return (m[0] & m[1] & m[2] & m[3]) != 0;
  }
  static KDELTA_INLINE Portable select_gt(Portable a, Portable b, Portable x, Portable y) {
    return {a.v > b.v ? x.v : y.v};
  }
  KDELTA_INLINE Portable sqrt() const { return {Raw{sqrtf(v[0]), sqrtf(v[1]), sqrtf(v[2]), sqrtf(v[3])}}; }
  KDELTA_INLINE Portable abs() const { return {Raw{fabsf(v[0]), fabsf(v[1]), fabsf(v[2]), fabsf(v[3])}}; }
  KDELTA_INLINE Portable round() const {
    // Adding 1.5 * 2^23 leaves no bits behind the point; from 2^22 on every float is close enough to be an integer or
    // half of one.
    const Raw rounded = (v + kMagic) - kMagic;
    return {abs().v < 4194304.0f ? rounded : v};
  }
  KDELTA_INLINE Portable pow2i() const {
    return {reinterpret_cast<Raw>((reinterpret_cast<Bits>(v + kMagic) + 127u) << 23)};
  }
  static KDELTA_INLINE Portable ldexp(Portable x, Portable n) {
    const Portable half = (n * set1(0.5f)).round();
    return x * half.pow2i() * (n - half).pow2i();
  }
  KDELTA_INLINE float sum() const { return (v[0] + v[2]) + (v[1] + v[3]); }
  KDELTA_INLINE float max_lane() const { return fmaxf(fmaxf(v[0], v[1]), fmaxf(v[2], v[3])); }

 private:
  static constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: x + kMagic holds the integer x in its low bits
};

#if defined(__AVX2__) && defined(__FMA__)
struct Avx2 {
  static constexpr int kLanes = 8;
  __m256 v;

  static KDELTA_INLINE Avx2 zero() { return {_mm256_setzero_ps()}; }
  static KDELTA_INLINE Avx2 set1(float x) { return {_mm256_set1_ps(x)}; }
  static KDELTA_INLINE Avx2 load(const float* p) { return {_mm256_loadu_ps(p)}; }
  static KDELTA_INLINE Avx2 load(const bf16* p) {
    const __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16))};
  }
  template <class T>
  static KDELTA_INLINE Avx2 load_n(const T* p, int64_t n) {
    T tmp[8] = {};
    std::memcpy(tmp, p, static_cast<size_t>(n) * sizeof(T));
    return load(tmp);
  }
  KDELTA_INLINE void store(float* p) const { _mm256_storeu_ps(p, v); }
  // As to_bf16, in the lower half of each element.
  KDELTA_INLINE __m256i rounded_lower() const {
    const __m256i u = _mm256_castps_si256(v), upper = _mm256_srli_epi32(u, 16);
    const __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
    const __m256i rounded =
        _mm256_srli_epi32(_mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    const __m256i quiet = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
    return _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q)));
  }
  KDELTA_INLINE void store(bf16* p) const {
    const __m256i h = rounded_lower();
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(h, h), 0x8);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
  }
  static KDELTA_INLINE void store_pair(Avx2 a, Avx2 b, float* p) { a.store(p), b.store(p + kLanes); }
  static KDELTA_INLINE void store_pair(Avx2 a, Avx2 b, bf16* p) {
    const __m256i packed = _mm256_packus_epi32(a.rounded_lower(), b.rounded_lower());  // within 128-bit halves
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xd8));
  }
  template <class T>
  KDELTA_INLINE void store_n(T* p, int64_t n) const {
    T tmp[8];
    store(tmp);
    std::memcpy(p, tmp, static_cast<size_t>(n) * sizeof(T));
  }
  friend KDELTA_INLINE Avx2 operator+(Avx2 a, Avx2 b) { return {_mm256_add_ps(a.v, b.v)}; }
  friend KDELTA_INLINE Avx2 operator-(Avx2 a, Avx2 b) { return {_mm256_sub_ps(a.v, b.v)}; }
  friend KDELTA_INLINE Avx2 operator*(Avx2 a, Avx2 b) { return {_mm256_mul_ps(a.v, b.v)}; }
  friend KDELTA_INLINE Avx2 operator/(Avx2 a, Avx2 b) { return {_mm256_div_ps(a.v, b.v)}; }
  static KDELTA_INLINE Avx2 fma(Avx2 a, Avx2 b, Avx2 c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
  static KDELTA_INLINE Avx2 min(Avx2 a, Avx2 b) { return {_mm256_min_ps(a.v, b.v)}; }
  static KDELTA_INLINE Avx2 max(Avx2 a, Avx2 b) { return {_mm256_max_ps(a.v, b.v)}; }
  static KDELTA_INLINE bool all_gt(Avx2 a, Avx2 b) {
    return _mm256_movemask_ps(_mm256_cmp_ps(a.v, b.v, _CMP_GT_OQ)) == 0xff;
  }
  static KDELTA_INLINE Avx2 select_gt(Avx2 a, Avx2 b, Avx2 x, Avx2 y) {
    return {_mm256_blendv_ps(y.v, x.v, _mm256_cmp_ps(a.v, b.v, _CMP_GT_OQ))};
  }
  KDELTA_INLINE Avx2 sqrt() const { return {_mm256_sqrt_ps(v)}; }
  KDELTA_INLINE Avx2 abs() const { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), v)}; }
  KDELTA_INLINE Avx2 round() const { return {_mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
  KDELTA_INLINE Avx2 pow2i() const {
    const __m256i n = _mm256_add_epi32(_mm256_cvtps_epi32(v), _mm256_set1_epi32(127));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(n, 23))};
  }
  static KDELTA_INLINE Avx2 ldexp(Avx2 x, Avx2 n) {
    const Avx2 half = (n * set1(0.5f)).round();
    return x * half.pow2i() * (n - half).pow2i();
  }
  KDELTA_INLINE float sum() const {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
  }
  KDELTA_INLINE float max_lane() const {
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
  }
};
#endif

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
struct Avx512 {
  static constexpr int kLanes = 16;
  __m512 v;

  static KDELTA_INLINE __mmask16 mask(int64_t n) { return static_cast<__mmask16>((1u << n) - 1u); }
  static KDELTA_INLINE Avx512 zero() { return {_mm512_setzero_ps()}; }
  static KDELTA_INLINE Avx512 set1(float x) { return {_mm512_set1_ps(x)}; }
  static KDELTA_INLINE Avx512 widen(__m256i h) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16))};
  }
  static KDELTA_INLINE Avx512 load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static KDELTA_INLINE Avx512 load(const bf16* p) {
    return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static KDELTA_INLINE Avx512 load_n(const float* p, int64_t n) { return {_mm512_maskz_loadu_ps(mask(n), p)}; }
  static KDELTA_INLINE Avx512 load_n(const bf16* p, int64_t n) { return widen(_mm256_maskz_loadu_epi16(mask(n), p)); }
  // As to_bf16, in the upper half of each element.
  KDELTA_INLINE __m512i rounded_upper() const {
    const __m512i u = _mm512_castps_si512(v);
    __m512i r = _mm512_add_epi32(u, _mm512_set1_epi32(0x7fff));
    r = _mm512_mask_add_epi32(r, _mm512_test_epi32_mask(u, _mm512_set1_epi32(0x10000)), r, _mm512_set1_epi32(1));
    return _mm512_mask_or_epi32(r, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), u, _mm512_set1_epi32(0x400000));
  }
  // Odd 16-bit elements of two vectors: one permutation in place of a shift and a narrowing move (two steps on Zen) for
  // each.
  static KDELTA_INLINE __m512i upper_halves(__m512i low, __m512i high) {
    const __m512i odd = _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33,  //
                                         31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    return _mm512_permutex2var_epi16(low, odd, high);
  }
  KDELTA_INLINE __m256i narrow() const {
    const __m512i r = rounded_upper();
    return _mm512_castsi512_si256(upper_halves(r, r));
  }
  KDELTA_INLINE void store(float* p) const { _mm512_storeu_ps(p, v); }
  KDELTA_INLINE void store(bf16* p) const { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow()); }
  static KDELTA_INLINE void store_pair(Avx512 a, Avx512 b, float* p) { a.store(p), b.store(p + kLanes); }
  static KDELTA_INLINE void store_pair(Avx512 a, Avx512 b, bf16* p) {
    _mm512_storeu_si512(p, upper_halves(a.rounded_upper(), b.rounded_upper()));
  }
  KDELTA_INLINE void store_n(float* p, int64_t n) const { _mm512_mask_storeu_ps(p, mask(n), v); }
  KDELTA_INLINE void store_n(bf16* p, int64_t n) const { _mm256_mask_storeu_epi16(p, mask(n), narrow()); }
  friend KDELTA_INLINE Avx512 operator+(Avx512 a, Avx512 b) { return {_mm512_add_ps(a.v, b.v)}; }
  friend KDELTA_INLINE Avx512 operator-(Avx512 a, Avx512 b) { return {_mm512_sub_ps(a.v, b.v)}; }
  friend KDELTA_INLINE Avx512 operator*(Avx512 a, Avx512 b) { return {_mm512_mul_ps(a.v, b.v)}; }
  friend KDELTA_INLINE Avx512 operator/(Avx512 a, Avx512 b) { return {_mm512_div_ps(a.v, b.v)}; }
  static KDELTA_INLINE Avx512 fma(Avx512 a, Avx512 b, Avx512 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
  static KDELTA_INLINE Avx512 min(Avx512 a, Avx512 b) { return {_mm512_min_ps(a.v, b.v)}; }
  static KDELTA_INLINE Avx512 max(Avx512 a, Avx512 b) { return {_mm512_max_ps(a.v, b.v)}; }
  static KDELTA_INLINE bool all_gt(Avx512 a, Avx512 b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ) == 0xffff; }
  static KDELTA_INLINE Avx512 select_gt(Avx512 a, Avx512 b, Avx512 x, Avx512 y) {
    return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ), y.v, x.v)};
  }
  KDELTA_INLINE Avx512 sqrt() const { return {_mm512_sqrt_ps(v)}; }
  KDELTA_INLINE Avx512 abs() const { return {_mm512_abs_ps(v)}; }
  KDELTA_INLINE Avx512 round() const {
    return {_mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
  }
  KDELTA_INLINE Avx512 pow2i() const {
    const __m512i n = _mm512_add_epi32(_mm512_cvtps_epi32(v), _mm512_set1_epi32(127));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(n, 23))};
  }
  static KDELTA_INLINE Avx512 ldexp(Avx512 x, Avx512 n) { return {_mm512_scalef_ps(x.v, n.v)}; }
  KDELTA_INLINE float sum() const {
    const __m256 s = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 t = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    t = _mm_add_ps(t, _mm_movehl_ps(t, t));
    return _mm_cvtss_f32(_mm_add_ss(t, _mm_movehdup_ps(t)));
  }
  KDELTA_INLINE float max_lane() const {
    const __m256 s = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 t = _mm_max_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    t = _mm_max_ps(t, _mm_movehl_ps(t, t));
    return _mm_cvtss_f32(_mm_max_ss(t, _mm_movehdup_ps(t)));
  }
};
#endif

// n lanes, 1 <= n <= kLanes: with a constant n = kLanes the choice folds away, so one body serves the main loop and the
// tail.
template <class V, class T>
KDELTA_INLINE V load_lanes(const T* p, int64_t n) {
  return n == V::kLanes ? V::load(p) : V::load_n(p, n);
}
template <class V, class T>
KDELTA_INLINE void store_lanes(V v, T* p, int64_t n) {
  if (n == V::kLanes)
    v.store(p);
  else
    v.store_n(p, n);
}

}  // namespace kdelta::simd
