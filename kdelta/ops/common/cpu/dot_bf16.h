// Projection of bf16 tokens with vdpbf16ps: lanes are the 16 rows of a panel, an accumulator adds the column pairs 0,
// 1, 2, ... in order, whatever T is. Weights of G panels x kColumns are transposed (and dequantised) into L1, then TT
// tokens at a time take a dword of x per lane-wide product. Accumulators rest in fp32 between column ranges, so ranges
// and tiles never change a bit.
#pragma once

#include "kdelta/ops/common/cpu/pack_sizes.h"
#include "kdelta/ops/common/cpu/panel_outputs.h"
#include "kdelta/ops/common/cpu/weight_words.h"

// The inline namespace names the instruction set in every symbol (tools/check_isa).
namespace kdelta::inline avx512_bf16 {

// Per-thread scratch of this kernel.
struct PackScratch {
  __m512i* words;    // [G] panels, 512 / G pairs of columns apart
  __m512i* drops;    // [8][16] scale drops of the current 512 columns
  __m512* sums;      // [256 tokens][8 panels] accumulators, group by group
  float* exact_row;  // [K] for rows outside the range of exact bf16 weights
};

KDELTA_INLINE PackScratch pack_scratch(void* scratch, int rank, int64_t K) {
  auto* base = reinterpret_cast<__m512i*>(static_cast<char*>(scratch) + rank * pack_scratch_bytes(K));
  __m512i* drops = base + kPackVectors;
  __m512i* sums = drops + kPackPanels * 16;
  return {base, drops, reinterpret_cast<__m512*>(sums), reinterpret_cast<float*>(sums + kPackTokens * kPackPanels)};
}

// Bytes ahead of the loads of a row (0 costs half the rate, 2,048 a tenth: notes.md); the end of a row leads into the
// rows of the next panel group.
inline constexpr int64_t kPackPrefetch = 512;

// One step of a panel: 64 bytes of each row, or `bytes` of `count` rows. dst[i] = pair i of all rows.
template <class F, bool kAhead>
KDELTA_INLINE void pack_step(const uint8_t* row, int64_t stride, int64_t ahead, const __m512i* drops, __m512i* dst) {
  __m512i v[16];
  __asm__("" : "+r"(stride));  // or 16 row offsets are kept across the steps, in vector registers
#pragma GCC unroll 4
  for (int r = 0; r < 16; r += 4, row += 4 * stride)
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      v[r + i] = _mm512_loadu_si512(row + i * stride);
      if constexpr (kAhead) _mm_prefetch(reinterpret_cast<const char*>(row + i * stride + ahead), _MM_HINT_T0);
    }
  transpose16(v);
#pragma GCC unroll 16
  for (int j = 0; j < 16; ++j)
#pragma GCC unroll 4
    for (int p = 0; p < F::kPairs; ++p)
      _mm512_store_si512(dst + j * F::kPairs + p, F::expand(v[j], p, F::kScaled ? drops[j * F::kPairs / 16] : v[j]));
}

template <class F>
KDELTA_INLINE void pack_partial_step(const uint8_t* row, int64_t stride, int64_t count, int64_t bytes,
                                     const __m512i* drops, __m512i* dst) {
  const __mmask64 valid = bytes >= 64 ? ~__mmask64{0} : (__mmask64{1} << bytes) - 1;
  __m512i v[16];
  for (int r = 0; r < 16; ++r)
    v[r] = r < count ? _mm512_maskz_loadu_epi8(valid, row + r * stride) : _mm512_setzero_si512();
  transpose16(v);
  for (int j = 0; j < 16; ++j)
#pragma GCC unroll 4
    for (int p = 0; p < F::kPairs; ++p)
      dst[j * F::kPairs + p] = F::expand(v[j], p, F::kScaled ? drops[j * F::kPairs / 16] : v[j]);
}

// Columns [k, k + columns) of the rows [n, n + count) of one panel; k is a multiple of the step.
template <class F, bool kAhead>
__attribute__((noinline)) void pack_panel(const Matrix& w, int64_t n, int64_t count, int64_t k, int64_t columns,
                                          int64_t group_rows, const __m512i* drops, __m512i* dst) {
  constexpr int64_t kStep = 32 * F::kPairs;  // columns in 64 bytes
  const int64_t row_end = (w.cols * 2 + F::kPairs - 1) / F::kPairs;
  const uint8_t* row = w.row(n);
  for (int64_t c = 0; c < columns; c += kStep, dst += 16 * F::kPairs) {
    const int64_t at = (k + c) * 2 / F::kPairs, bytes = row_end - at;
    const __m512i* d = drops + (k + c) % kScaleSpan / kMxBlock;
    if (bytes >= 64 && count == 16) {
      const int64_t ahead =
          at + kPackPrefetch < row_end ? kPackPrefetch : group_rows * w.row_bytes + kPackPrefetch - row_end;
      pack_step<F, kAhead>(row + at, w.row_bytes, ahead, d, dst);
    } else {
      pack_partial_step<F>(row + at, w.row_bytes, count, bytes, d, dst);
    }
  }
}

// The next column range of a group: `bytes` from `row` on in each of its rows. With few tokens the products of one
// range wait for each other longer than memory needs to deliver the next, so that is when it is fetched.
struct NextRange {
  const uint8_t* row = nullptr;
  int64_t stride = 0, bytes = 0;
};

// Pair i of a tile fetches row i: 128 columns make 64 pairs, four panels 64 rows.
KDELTA_INLINE void fetch_next(const NextRange& next, int64_t i) {
  for (int64_t b = 0; b < next.bytes; b += 64)
    _mm_prefetch(reinterpret_cast<const char*>(next.row + i * next.stride + b), _MM_HINT_T0);
}

// `pairs` column pairs of G panels times TT tokens whose rows start at x[t]. `odd`: one more column, the last of an odd
// K.
template <int G, int TT>
KDELTA_INLINE void dot_tile(const __m512i* words, const bf16* const* x, int64_t pairs, bool odd, bool first,
                            const NextRange& next, __m512* sums) {
  constexpr int64_t kStride = kPackVectors / G;
  __m512 acc[TT][G];
#pragma GCC unroll 12
  for (int t = 0; t < TT; ++t)
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) acc[t][g] = first ? _mm512_setzero_ps() : sums[t * G + g];
  auto step = [&](int64_t i, auto dword) __attribute__((always_inline)) {
    __m512i wv[G];
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) wv[g] = words[g * kStride + i];
#pragma GCC unroll 12
    for (int t = 0; t < TT; ++t) {
      const __m512i xv = _mm512_set1_epi32(dword(x[t] + 2 * i));
#pragma GCC unroll 8
      for (int g = 0; g < G; ++g)
        acc[t][g] = _mm512_dpbf16_ps(acc[t][g], reinterpret_cast<__m512bh>(wv[g]), reinterpret_cast<__m512bh>(xv));
    }
  };
  for (int64_t i = 0; i < pairs; ++i) {
    if constexpr (G == 4) fetch_next(next, i);
    step(
        i, [](const bf16* p) __attribute__((always_inline)) {
          int d;
          __builtin_memcpy(&d, p, 4);
          return d;
        });
  }
  if (odd)
    step(
        pairs, [](const bf16* p) __attribute__((always_inline)) { return static_cast<int>(p->bits); });
#pragma GCC unroll 12
  for (int t = 0; t < TT; ++t)
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) sums[t * G + g] = acc[t][g];
}

// Tokens [begin, end) against one packed column range [k, k + columns) of G panels.
// Not inlined, as pack_panel: constants of the one must not take registers from the other.
template <int G>
__attribute__((noinline)) void dot_tokens(const Projection& p, int64_t begin, int64_t end, int64_t k, int64_t columns,
                                          const __m512i* words, const NextRange& next, __m512* all_sums) {
  constexpr int kMost = 24 / G > 12 ? 12 : 24 / G;
  const bf16* x[kMost];
  for (int64_t t = begin; t < end;) {
    const int64_t left = end - t < kMost ? end - t : kMost;
    for (int64_t i = 0; i < left; ++i) x[i] = p.token<bf16>(t + i) + k;
    __m512* sums = all_sums + (t - begin) * G;
    auto tile = [&](auto tokens) __attribute__((always_inline)) {
      dot_tile<G, decltype(tokens)::value>(words, x, columns / 2, columns % 2 != 0, k == 0, next, sums);
      t += decltype(tokens)::value;
    };
    if constexpr (kMost >= 12)
      if (left >= 12) {
        tile(std::integral_constant<int, 12>{});
        continue;
      }
    if constexpr (kMost >= 6)
      if (left >= 6) {
        tile(std::integral_constant<int, 6>{});
        continue;
      }
    if (left >= 3)
      tile(std::integral_constant<int, 3>{});
    else if (left == 2)
      tile(std::integral_constant<int, 2>{});
    else
      tile(std::integral_constant<int, 1>{});
  }
}

template <int G, class Out>
KDELTA_INLINE void store_group(const Projection& p, int64_t n, int64_t begin, int64_t end, const __mmask16* outside,
                               const __m512* sums) {
  __mmask16 rows[G];
  for (int g = 0; g < G; ++g) rows[g] = stored_rows(p, n + 16 * g, outside[g]);
  for (int64_t t = begin; t < end; ++t)
    for (int g = 0; g < G; ++g) {
      const int64_t at = n + 16 * g;
      const Out* addend = p.addend.null() ? nullptr : p.addend.template at<const Out>(t) + at;
      store_outputs(sums[(t - begin) * G + g], addend, p.out.template at<Out>(t) + at, rows[g]);
    }
}

// The column range [k, k + columns) of G panels at row n into s.words; returns the rows outside the exact range in
// `outside`.
template <class F, int G>
KDELTA_INLINE void pack_group(const Matrix& w, int64_t n, int64_t k, int64_t columns, __m512i* drops,
                              __mmask16* outside, __m512i* words) {
  for (int64_t g = 0; g < G; ++g) {
    const int64_t first = n + 16 * g, count = w.rows - first < 16 ? w.rows - first : 16;
    if constexpr (F::kScaled)
      if (k % kScaleSpan == 0)
        outside[g] |= scale_drops_by_block<F>(w, first, count, k / kMxBlock, 16 * G, drops + 16 * g);
    pack_panel<F, G != 4>(w, first, count, k, columns, 16 * G, drops + 16 * g, words + g * (kPackVectors / G));
  }
}

// Where the range after the one that ends at column k lies: further on in the rows at n, or at the start of those
// `ahead` rows on. Groups take turns, so a range has the turn of the other group to arrive in.
template <class F>
KDELTA_INLINE NextRange next_range(const Matrix& w, int64_t n, int64_t k, int64_t columns, int64_t ahead) {
  const int64_t row = k < w.cols ? n : n + ahead, at = k < w.cols ? k * 2 / F::kPairs : 0;
  return {w.row(row) + at, w.row_bytes, columns * 2 / F::kPairs};
}

// Few tokens fit 4 x 6 accumulators. They take short ranges, so that the packed words (16 KB) and the range being
// fetched (up to 16 KB) share L1.
inline constexpr int64_t kFewTokens = 6, kFewColumns = 128;

// `groups` times G panels starting at row n, all tokens. 256 tokens x 512 columns (256 KB) stay in L2 for all the
// groups.
template <class F, int G, class Out>
void dot_groups(const Projection& p, int64_t n, int64_t groups, const PackScratch& s) {
  constexpr int64_t kColumns = G == 4 ? kFewColumns : kScaleSpan;
  __mmask16 outside[kPackPanels] = {};
  for (int64_t begin = 0; begin < p.T; begin += kPackTokens) {
    const int64_t end = begin + kPackTokens < p.T ? begin + kPackTokens : p.T;
    for (int64_t k = 0; k < p.w.cols; k += kColumns) {
      const int64_t columns = p.w.cols - k < kColumns ? p.w.cols - k : kColumns;
      for (int64_t i = 0; i < groups; ++i) {
        pack_group<F, G>(p.w, n + 16 * G * i, k, columns, s.drops + 16 * G * i, outside + G * i, s.words);
        const NextRange next = next_range<F>(p.w, n + 16 * G * i, k + columns, kColumns, 16 * G * groups);
        dot_tokens<G>(p, begin, end, k, columns, s.words, next, s.sums + i * kPackTokens * G);
      }
    }
    for (int64_t i = 0; i < groups; ++i)
      store_group<G, Out>(p, n + 16 * G * i, begin, end, outside + G * i, s.sums + i * kPackTokens * G);
  }
  if constexpr (F::kScaled)
    for (int64_t g = 0; g < groups * G; ++g)
      if (outside[g] != 0) exact_rows<Out>(p, n + 16 * g, outside[g], s.exact_row);
}

// Panels [begin, end): few tokens take many panels at once, because the products of one accumulator wait for each
// other.
template <class F, class Out>
void dot_panels_bf16(const Projection& p, int64_t begin, int64_t end, const PackScratch& s) {
  const int64_t widest = p.T <= kFewTokens ? 4 : 2;
  while (begin < end) {
    const int64_t left = end - begin, n = begin * kPanelRows;
    int64_t G = widest;
    while (G > left) G /= 2;
    const int64_t groups = (left < kPackPanels ? left : kPackPanels) / G;
    switch (G) {
      case 4:
        dot_groups<F, 4, Out>(p, n, groups, s);
        break;
      case 2:
        dot_groups<F, 2, Out>(p, n, groups, s);
        break;
      default:
        dot_groups<F, 1, Out>(p, n, groups, s);
    }
    begin += groups * G;
  }
}

template <class Tag>
void project_panels_bf16(const Projection& p, int64_t begin, int64_t end, const PackScratch& s) {
  dispatch_words(p.w.dtype, [&](auto words) {
    dispatch_activation(p.out.dtype,
                        [&](auto out) { dot_panels_bf16<decltype(words), decltype(out)>(p, begin, end, s); });
  });
}

}  // namespace kdelta::inline avx512_bf16
