// Weight formats as vectors of bf16 words along a row, for AVX512_BF16 kernels. 64 bytes of a row become kVectors
// vectors of 32 words, scale already applied, exact. They lie as unpacking is cheapest, and tokens are packed to match
// (dot_bf16.h): word i of vector v is column kVectors * i + v of the 32 * kVectors columns that the bytes hold.
//
// Up to kFileTokens tokens are multiplied with rows as they lie in the file: what registers hold beside the words of a
// row, or, where nothing is unpacked, while memory still is the slower side. Scales and ranges are those of
// weight_words.h.
#pragma once

#include "kdelta/ops/common/cpu/weight_words.h"

namespace kdelta {

struct Bf16Row {
  static constexpr bool kScaled = false;
  static constexpr int kVectors = 1, kFileTokens = 6;
  static KDELTA_INLINE void expand(__m512i bytes, __m512i, __m512i (&out)[1]) { out[0] = bytes; }
};

struct Fp4Row {
  static constexpr bool kScaled = true;
  static constexpr int kVectors = 4, kFileTokens = 6;
  static constexpr int kLow = Fp4Words::kLow, kTop = Fp4Words::kTop;

  // A word of the file holds four codes; vpermw looks at the low five bits, and the table repeats after four of them.
  static KDELTA_INLINE void expand(__m512i codes, __m512i drop, __m512i (&out)[4]) {
    const __m512i table = Fp4Words::table();
    out[0] = _mm512_subs_epu16(_mm512_permutexvar_epi16(codes, table), drop);
    out[1] = _mm512_subs_epu16(_mm512_permutexvar_epi16(_mm512_srli_epi16(codes, 4), table), drop);
    out[2] = _mm512_subs_epu16(_mm512_permutexvar_epi16(_mm512_srli_epi16(codes, 8), table), drop);
    out[3] = _mm512_subs_epu16(_mm512_permutexvar_epi16(_mm512_srli_epi16(codes, 12), table), drop);
  }
};

// The low or high bytes of the 128 words of an FP8 format, for vpermi2b.
constexpr std::array<uint8_t, 128> fp8_bytes(std::array<uint16_t, 128> words, int shift) {
  std::array<uint8_t, 128> bytes{};
  for (size_t i = 0; i < 128; ++i) bytes[i] = static_cast<uint8_t>(words[i] >> shift);
  return bytes;
}

template <class Words>
struct Fp8Row {
  static constexpr bool kScaled = true;
  static constexpr int kVectors = 2, kFileTokens = 4;
  static constexpr int kLow = Words::kLow, kTop = Words::kTop;
  alignas(64) static constexpr std::array<uint8_t, 128> kLowBytes = fp8_bytes(Words::kTable, 0);
  alignas(64) static constexpr std::array<uint8_t, 128> kHighBytes = fp8_bytes(Words::kTable, 8);

  // A word of the file holds two codes: bytes of all 64 magnitudes by table, then paired.
  static KDELTA_INLINE void expand(__m512i codes, __m512i drop, __m512i (&out)[2]) {
    constexpr __mmask64 kOdd = 0xaaaaaaaaaaaaaaaaull;
    const __m512i low = lookup(kLowBytes, codes), high = lookup(kHighBytes, codes);
    const __m512i even = _mm512_mask_blend_epi8(kOdd, low, _mm512_slli_epi16(high, 8));
    const __m512i odd = _mm512_mask_blend_epi8(kOdd, _mm512_srli_epi16(low, 8), high);
    const __m512i even_codes = _mm512_slli_epi16(codes, 8);
    out[0] = _mm512_subs_epu16(even, drop);
    out[1] = _mm512_subs_epu16(odd, drop);
    const __m512i magnitudes = _mm512_and_si512(codes, _mm512_set1_epi8(0x7f));
    if (__builtin_expect(_mm512_cmpge_epu8_mask(magnitudes, _mm512_set1_epi8(Words::kFirstSpecial)) != 0, 0)) {
      out[0] = _mm512_mask_mov_epi16(out[0], special(even_codes), even);
      out[1] = _mm512_mask_mov_epi16(out[1], special(codes), odd);
    }
    out[0] = with_sign(out[0], even_codes);
    out[1] = with_sign(out[1], codes);
  }

 private:
  static KDELTA_INLINE __m512i lookup(const std::array<uint8_t, 128>& table, __m512i codes) {
    return _mm512_permutex2var_epi8(_mm512_load_si512(table.data()), codes, _mm512_load_si512(table.data() + 64));
  }
  // Infinities and NaN, which no scale changes; the code is in the high byte of each word.
  static KDELTA_INLINE __mmask32 special(__m512i codes) {
    const __m512i magnitude = _mm512_and_si512(codes, _mm512_set1_epi16(0x7f00));
    return _mm512_cmpge_epu16_mask(magnitude, _mm512_set1_epi16(Words::kFirstSpecial << 8));
  }
  // Bit 15 of each word of `codes` on top of `words`.
  static KDELTA_INLINE __m512i with_sign(__m512i words, __m512i codes) {
    return _mm512_ternarylogic_epi32(words, codes, _mm512_set1_epi16(static_cast<int16_t>(0x8000)), 0xf8);
  }
};
using E4m3Row = Fp8Row<E4m3Words>;
using E5m2Row = Fp8Row<E5m2Words>;

// f(row type) for the format of w. f32 weights have no such form: their kernels are refused before.
template <class F>
KDELTA_INLINE void dispatch_row_words(DType w, F&& f) {
  switch (w) {
    case DType::bf16:
      return f(Bf16Row{});
    case DType::f4_e2m1:
      return f(Fp4Row{});
    case DType::f8_e4m3:
      return f(E4m3Row{});
    default:
      return f(E5m2Row{});
  }
}

}  // namespace kdelta
