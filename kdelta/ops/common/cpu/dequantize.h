// MX weights to fp32 for the fp32 kernels, exact and equal to dequantize_row of core/matrix.h. One template over V so
// that each instruction set has its own copy; AVX2 and AVX-512 look FP4 codes up in registers.
#pragma once

#include <array>
#include <cstring>

#include "kdelta/core/matrix.h"
#include "kdelta/ops/common/cpu/simd.h"

namespace kdelta {

// 2^(code - 127); 0 is the subnormal 2^-127, 255 is NaN.
KDELTA_INLINE float scale_value(uint8_t code) {
  const uint32_t bits = code == 0 ? 0x00400000u : code == 255 ? 0x7fc00000u : static_cast<uint32_t>(code) << 23;
  return std::bit_cast<float>(bits);
}

consteval std::array<float, 16> fp4_values() {
  std::array<float, 16> v = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  for (size_t i = 0; i < 8; ++i) v[i + 8] = -v[i];
  return v;
}

// All codes of an FP8 format with `exponent_bits`; E5M2 has infinities, both have NaN.
consteval std::array<float, 256> fp8_values(int exponent_bits) {
  const int mantissa_bits = 7 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
  std::array<float, 256> v{};
  for (int code = 0; code < 128; ++code) {
    const int exponent = code >> mantissa_bits, mantissa = code & ((1 << mantissa_bits) - 1);
    float x = static_cast<float>(exponent == 0 ? mantissa : mantissa | 1 << mantissa_bits);
    for (int e = (exponent == 0 ? 1 : exponent) - bias - mantissa_bits; e != 0; e += e < 0 ? 1 : -1)
      x *= e < 0 ? 0.5f : 2.0f;
    if (exponent_bits == 4 && code == 0x7f) x = std::bit_cast<float>(0x7fc00000u);
    if (exponent_bits == 5 && code >= 0x7c) x = std::bit_cast<float>(code == 0x7c ? 0x7f800000u : 0x7fc00000u);
    v[static_cast<size_t>(code)] = x;
    v[static_cast<size_t>(code) + 128] = -x;
  }
  return v;
}

alignas(64) inline constexpr std::array<float, 16> kFp4Values = fp4_values();
alignas(64) inline constexpr std::array<float, 256> kE4m3Values = fp8_values(4), kE5m2Values = fp8_values(5);

// out[0..32) *= scale. One store width for all: the elements were written 4 bytes at a time long enough ago.
template <class V>
KDELTA_INLINE void scale_block(float* out, float scale) {
  const V s = V::set1(scale);
  for (int i = 0; i < kMxBlock; i += V::kLanes) (V::load(out + i) * s).store(out + i);
}

template <class V>
KDELTA_INLINE void fp4_block(const uint8_t* codes, float scale, float* out) {
  for (int i = 0; i < kMxBlock / 2; ++i) {
    out[2 * i] = kFp4Values[codes[i] & 15] * scale;
    out[2 * i + 1] = kFp4Values[codes[i] >> 4] * scale;
  }
}

#if defined(__AVX2__) && defined(__FMA__)
template <>
KDELTA_INLINE void fp4_block<simd::Avx2>(const uint8_t* codes, float scale, float* out) {
  const __m256 table = _mm256_load_ps(kFp4Values.data()), s = _mm256_set1_ps(scale);
  const __m256i sign = _mm256_set1_epi32(8);
  auto values = [&](__m256i nibble) __attribute__((always_inline)) {  // bits 0..2 select, bit 3 is the sign
    const __m256i negative = _mm256_slli_epi32(_mm256_and_si256(nibble, sign), 28);
    return _mm256_mul_ps(_mm256_xor_ps(_mm256_permutevar8x32_ps(table, nibble), _mm256_castsi256_ps(negative)), s);
  };
  for (int half = 0; half < 2; ++half, codes += 8, out += 16) {
    const __m256i bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes)));
    const __m256 even = values(bytes), odd = values(_mm256_srli_epi32(bytes, 4));
    const __m256 lo = _mm256_unpacklo_ps(even, odd), hi = _mm256_unpackhi_ps(even, odd);
    _mm256_storeu_ps(out, _mm256_permute2f128_ps(lo, hi, 0x20));
    _mm256_storeu_ps(out + 8, _mm256_permute2f128_ps(lo, hi, 0x31));
  }
}
#endif

#if defined(__AVX512F__) && defined(__AVX512BW__)
template <>
KDELTA_INLINE void fp4_block<simd::Avx512>(const uint8_t* codes, float scale, float* out) {
  const __m512 table = _mm512_load_ps(kFp4Values.data()), s = _mm512_set1_ps(scale);
  const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
  const __m512 even = _mm512_mul_ps(_mm512_permutexvar_ps(bytes, table), s);
  const __m512 odd = _mm512_mul_ps(_mm512_permutexvar_ps(_mm512_srli_epi32(bytes, 4), table), s);
  const __m512i first = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
  _mm512_storeu_ps(out, _mm512_permutex2var_ps(even, first, odd));
  _mm512_storeu_ps(out + 16, _mm512_permutex2var_ps(even, second, odd));
}
#endif

// One row of an MX matrix.
template <class V>
KDELTA_INLINE void dequantize_mx(const Matrix& m, int64_t row, float* out) {
  const uint8_t *codes = m.row(row), *scales = m.scale_row(row);
  const int64_t blocks = m.cols / kMxBlock;
  if (m.dtype == DType::f4_e2m1) {
    for (int64_t b = 0; b < blocks; ++b) fp4_block<V>(codes + b * 16, scale_value(scales[b]), out + b * kMxBlock);
    return;
  }
  const float* values = m.dtype == DType::f8_e4m3 ? kE4m3Values.data() : kE5m2Values.data();
  for (int64_t k = 0; k < m.cols; ++k) out[k] = values[codes[k]];
  for (int64_t b = 0; b < blocks; ++b) scale_block<V>(out + b * kMxBlock, scale_value(scales[b]));
}

}  // namespace kdelta
