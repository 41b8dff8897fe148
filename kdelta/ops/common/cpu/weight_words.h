// Weight formats as bf16 words, for AVX512_BF16 and AMX kernels. A dword of the file holds kPairs pairs of neighbouring
// columns; block() gives the 32 words of a block of a row, scale already applied, exact, in the order in which deal()
// puts 32 words of a token.
//
// MX scales are applied as integers: tables hold each element times 2^(kTop - 127), the largest exponent that stays
// finite, and kTop - code is subtracted from the exponent field with saturation, so zero stays zero (-0 becomes +0: no
// sum of products can tell). That is exact while every nonzero weight is a normal bf16 number. vdpbf16ps and AMX also
// flush products below 2^-126, so the lowest code served is 2^-63: exact for |x| above 2^-47. A row with a code outside
// kLow..kTop (2^-127, NaN, ...) is computed by the fp32 path instead; whether it is depends on the row alone.
#pragma once

#include <immintrin.h>

#include <array>

#include "kdelta/core/dtype.h"
#include "kdelta/core/matrix.h"

namespace kdelta {

struct Bf16Words {
  static constexpr bool kScaled = false;
  static constexpr int kPairs = 1;
  static KDELTA_INLINE __m512i deal(__m512i token) { return token; }
};

struct Fp4Words {
  static constexpr bool kScaled = true;
  static constexpr int kPairs = 4, kLow = 64, kTop = 252;

  // Words selected by the low five bits of an index: the table twice, because bit 4 belongs to the neighbour.
  static KDELTA_INLINE __m512i table() {
    // 0, .5, 1, 1.5, 2, 3, 4, 6 times 2^(252 - 127)
    const __m128i lo = _mm_set_epi16(0x7f40, 0x7f00, 0x7ec0, 0x7e80, 0x7e40, 0x7e00, 0x7d80, 0);
    const __m128i hi = _mm_set_epi16(-0xc0, -0x100, -0x140, -0x180, -0x1c0, -0x200, -0x280, 0);
    const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(lo), hi, 1);
    return _mm512_broadcast_i64x4(both);
  }
  // Four times the 8 words of the file, each time shifted to another of their codes: word 8 q + i is column 4 i + q.
  static KDELTA_INLINE __m512i block(const uint8_t* codes, __m512i drop) {
    const __m512i words = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
    const __m512i lanes = _mm512_srlv_epi16(words, quarters(0, 4, 8, 12));
    return _mm512_subs_epu16(_mm512_permutexvar_epi16(lanes, table()), drop);
  }
  static KDELTA_INLINE __m512i deal(__m512i token) {
    const __m128i fours = _mm_set_epi16(28, 24, 20, 16, 12, 8, 4, 0);
    const __m512i index = _mm512_add_epi16(_mm512_broadcast_i32x4(fours), quarters(0, 1, 2, 3));
    return _mm512_permutexvar_epi16(index, token);
  }

 private:
  static KDELTA_INLINE __m512i quarters(int16_t a, int16_t b, int16_t c, int16_t d) {
    const __m256i low = _mm256_set_m128i(_mm_set1_epi16(b), _mm_set1_epi16(a));
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), _mm256_set_m128i(_mm_set1_epi16(d), _mm_set1_epi16(c)), 1);
  }
};

// Magnitudes of the 128 codes of an FP8 format, scaled by 2^(top - 127), as bf16 bits. Codes from `special` on are
// infinities and NaN and keep their meaning unscaled.
constexpr std::array<uint16_t, 128> fp8_words(int exponent_bits, int top, int special) {
  const int mantissa_bits = 7 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
  std::array<uint16_t, 128> words{};
  for (int code = 1; code < 128; ++code) {
    int exponent = code >> mantissa_bits, mantissa = code & ((1 << mantissa_bits) - 1);
    if (code >= special) {
      words[static_cast<size_t>(code)] = static_cast<uint16_t>(exponent_bits == 5 && mantissa == 0 ? 0x7f80 : 0x7fc0);
      continue;
    }
    if (exponent == 0) {  // subnormal: shift the leading one up to the implicit place
      exponent = 1;
      while ((mantissa >> mantissa_bits) == 0) mantissa <<= 1, --exponent;
      mantissa &= (1 << mantissa_bits) - 1;
    }
    words[static_cast<size_t>(code)] =
        static_cast<uint16_t>((exponent - bias + top) << 7 | mantissa << (7 - mantissa_bits));
  }
  return words;
}

template <int kExponentBits, int kLowCode, int kTopCode, int kSpecial>
struct Fp8Words {
  static constexpr bool kScaled = true;
  static constexpr int kPairs = 2, kLow = kLowCode, kTop = kTopCode, kFirstSpecial = kSpecial;
  alignas(64) static constexpr std::array<uint16_t, 128> kTable = fp8_words(kExponentBits, kTop, kSpecial);

  static KDELTA_INLINE __m512i block(const uint8_t* codes, __m512i drop) {
    return words(_mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes))), drop);
  }
  static KDELTA_INLINE __m512i deal(__m512i token) { return token; }

 private:
  // One code in the low byte of each word.
  static KDELTA_INLINE __m512i words(__m512i code, __m512i drop) {
    const __m512i magnitude = _mm512_and_si512(code, _mm512_set1_epi16(0x7f));
    const __m512i low = _mm512_permutex2var_epi16(load(0), magnitude, load(32));
    const __m512i high = _mm512_permutex2var_epi16(load(64), magnitude, load(96));
    const __m512i word = _mm512_mask_blend_epi16(_mm512_test_epi16_mask(code, _mm512_set1_epi16(0x40)), low, high);
    const __mmask32 finite = _mm512_cmplt_epu16_mask(magnitude, _mm512_set1_epi16(kSpecial));
    const __m512i sign = _mm512_slli_epi16(_mm512_andnot_si512(_mm512_set1_epi16(0x7f), code), 8);
    return _mm512_or_si512(_mm512_mask_subs_epu16(word, finite, word, drop), sign);
  }
  static KDELTA_INLINE __m512i load(int entry) { return _mm512_load_si512(kTable.data() + entry); }
};
// E4M3FN: 2^-9 to 448, 0x7f is NaN. E5M2: 2^-16 to 57344, 0x7c is infinity, above it NaN.
using E4m3Words = Fp8Words<4, 64, 246, 0x7f>;
using E5m2Words = Fp8Words<5, 64, 239, 0x7c>;

// f(words type) for the format of w. f32 weights have no such form: their kernels are refused before.
template <class F>
KDELTA_INLINE void dispatch_words(DType w, F&& f) {
  switch (w) {
    case DType::bf16:
      return f(Bf16Words{});
    case DType::f4_e2m1:
      return f(Fp4Words{});
    case DType::f8_e4m3:
      return f(E4m3Words{});
    default:
      return f(E5m2Words{});
  }
}

// 16 x 16 dwords: r[i] lane j <-> r[j] lane i.
KDELTA_INLINE void transpose16(__m512i (&r)[16]) {
  __m512i t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
#pragma GCC unroll 4
  for (int q = 0; q < 16; q += 4) {
    r[q] = _mm512_unpacklo_epi64(t[q], t[q + 2]);
    r[q + 1] = _mm512_unpackhi_epi64(t[q], t[q + 2]);
    r[q + 2] = _mm512_unpacklo_epi64(t[q + 1], t[q + 3]);
    r[q + 3] = _mm512_unpackhi_epi64(t[q + 1], t[q + 3]);
  }
  // r[4q + c]: 128-bit lane L holds column 4L + c of rows 4q .. 4q + 3.
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const __m512i even0 = _mm512_shuffle_i32x4(r[c], r[4 + c], 0x88),
                  even1 = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0x88);
    const __m512i odd0 = _mm512_shuffle_i32x4(r[c], r[4 + c], 0xdd),
                  odd1 = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0xdd);
    t[c] = _mm512_shuffle_i32x4(even0, even1, 0x88);
    t[4 + c] = _mm512_shuffle_i32x4(odd0, odd1, 0x88);
    t[8 + c] = _mm512_shuffle_i32x4(even0, even1, 0xdd);
    t[12 + c] = _mm512_shuffle_i32x4(odd0, odd1, 0xdd);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) r[i] = t[i];
}

// Columns that 16 scale codes cover.
inline constexpr int64_t kScaleSpan = 16 * kMxBlock;

// (kTop - code) << 7 in both words of each dword; `outside` collects the lanes whose code is outside kLow..kTop.
template <class F>
KDELTA_INLINE __m512i scale_drop(__m512i codes, __mmask16& outside) {
  const __m512i drop = _mm512_sub_epi32(_mm512_set1_epi32(F::kTop), codes);
  outside = _mm512_cmpgt_epu32_mask(drop, _mm512_set1_epi32(F::kTop - F::kLow));  // negative wraps to large
  return _mm512_or_si512(_mm512_slli_epi32(drop, 7), _mm512_slli_epi32(drop, 23));
}

// The 16 codes of row n from `block` on; those past the end read as kTop. Scales are a stream of their own beside the
// codes: the row `ahead` rows on, which the caller wants next, is fetched now.
template <class F>
KDELTA_INLINE __m512i scale_codes(const Matrix& w, int64_t n, int64_t block, int64_t ahead) {
  _mm_prefetch(reinterpret_cast<const char*>(w.scale_row(n + ahead) + block), _MM_HINT_T0);
  const int64_t left = w.cols / kMxBlock - block;
  const __mmask16 valid = left >= 16 ? __mmask16{0xffff} : static_cast<__mmask16>((1u << left) - 1);
  const __m128i top = _mm_set1_epi8(static_cast<char>(F::kTop));
  return _mm512_cvtepu8_epi32(_mm_mask_loadu_epi8(top, valid, w.scale_row(n) + block));
}

// drops[r] lane b: the drop of row n + r in block b of 16, for `count` rows. Returns the rows outside the exact range.
template <class F>
KDELTA_INLINE __mmask16 scale_drops_by_row(const Matrix& w, int64_t n, int64_t count, int64_t block, int64_t ahead,
                                           __m512i* drops) {
  __mmask16 rows = 0;
  for (int64_t r = 0; r < count; ++r) {
    __mmask16 outside;
    _mm512_store_si512(drops + r, scale_drop<F>(scale_codes<F>(w, n + r, block, ahead), outside));
    rows |= static_cast<__mmask16>((outside != 0 ? 1u : 0u) << r);
  }
  return rows;
}

}  // namespace kdelta
