// Projection of bf16 tokens with vdpbf16ps. The order of every sum: a segment of 1,024 columns is added up in 16 lanes,
// vector by vector as row_words.h lays a row out, the lanes by a fixed tree, the segments in order. One token reads
// four weight rows at a time as they lie in the file; many tokens meet 8 rows unpacked in L1. Which of the two, and
// how tokens and columns are cut into passes, never changes a bit.
#pragma once

#include "kdelta/ops/common/cpu/pack_sizes.h"
#include "kdelta/ops/common/cpu/panel_outputs.h"
#include "kdelta/ops/common/cpu/row_words.h"

// The inline namespace names the instruction set in every symbol (tools/check_isa).
namespace kdelta::inline avx512_bf16 {

inline constexpr int64_t kTileFloats16 = 4 * kTokenTile;  // sums of 4 rows x 6 tokens, token by token

// Per-thread scratch of this kernel.
struct PackScratch {
  bf16* words;       // [kUnpackRows][segment] unpacked weights
  float* sums;       // [panel][tile of tokens][4 quads of rows][6 tokens][4 rows]
  float* exact_row;  // [K] for rows outside the range of exact bf16 weights
};

KDELTA_INLINE PackScratch pack_scratch(void* scratch, int64_t T, int64_t K) {
  const PackBytes bytes = pack_bytes(T, K);
  char* words = static_cast<char*>(scratch);
  char* sums = words + bytes.words;
  return {reinterpret_cast<bf16*>(words), reinterpret_cast<float*>(sums), reinterpret_cast<float*>(sums + bytes.sums)};
}

// Columns [k, k + count) of a pass: one segment or its last part. `padded` is whole steps of 64 bytes of a row.
struct Segment {
  int64_t k, count, padded;
};

template <class F>
KDELTA_INLINE Segment segment_at(int64_t k, int64_t end) {
  constexpr int64_t kStep = 32 * F::kVectors;
  const int64_t count = end - k < kSegment ? end - k : kSegment;
  return {k, count, (count + kStep - 1) / kStep * kStep};
}

// Tokens -------------------------------------------------------------------------------------------------------------

KDELTA_INLINE __m512i ascending_words() {
  alignas(64) static constexpr std::array<uint16_t, 32> kAscending = [] {
    std::array<uint16_t, 32> words{};
    for (uint16_t i = 0; i < 32; ++i) words[i] = i;
    return words;
  }();
  return _mm512_load_si512(kAscending.data());
}

KDELTA_INLINE __m512i even_words(__m512i a, __m512i b) {
  const __m512i index = _mm512_slli_epi16(ascending_words(), 1);
  return _mm512_permutex2var_epi16(a, index, b);
}
KDELTA_INLINE __m512i odd_words(__m512i a, __m512i b) {
  const __m512i index = _mm512_add_epi16(_mm512_slli_epi16(ascending_words(), 1), _mm512_set1_epi16(1));
  return _mm512_permutex2var_epi16(a, index, b);
}

// v[0 .. kVectors): columns in order -> columns as F::expand gives them.
template <int kVectors>
KDELTA_INLINE void deal_columns(__m512i (&v)[kVectors]) {
  if constexpr (kVectors == 2) {
    const __m512i a = v[0], b = v[1];
    v[0] = even_words(a, b), v[1] = odd_words(a, b);
  } else if constexpr (kVectors == 4) {
    const __m512i even0 = even_words(v[0], v[1]), even1 = even_words(v[2], v[3]);
    const __m512i odd0 = odd_words(v[0], v[1]), odd1 = odd_words(v[2], v[3]);
    v[0] = even_words(even0, even1), v[2] = odd_words(even0, even1);
    v[1] = even_words(odd0, odd1), v[3] = odd_words(odd0, odd1);
  }
}

// One segment of one token, zeros behind its end.
template <class F>
KDELTA_INLINE void deal_token(const bf16* x, const Segment& s, bf16* dst) {
  constexpr int kV = F::kVectors;
  constexpr int64_t kStep = 32 * kV;
  auto step = [&](int64_t c, auto load) __attribute__((always_inline)) {
    __m512i v[kV];
#pragma GCC unroll 4
    for (int i = 0; i < kV; ++i) v[i] = load(c + 32 * i);
    deal_columns<kV>(v);
#pragma GCC unroll 4
    for (int i = 0; i < kV; ++i) _mm512_store_si512(dst + c + 32 * i, v[i]);
  };
  const int64_t whole = s.count / kStep * kStep;
  for (int64_t c = 0; c < whole; c += kStep)
    step(
        c, [x](int64_t at) __attribute__((always_inline)) { return _mm512_loadu_si512(x + at); });
  if (whole < s.count)
    step(
        whole, [ x, &s ](int64_t at) __attribute__((always_inline)) {
          const int64_t left = s.count - at;
          const __mmask32 valid = left >= 32 ? ~__mmask32{0} : left <= 0 ? 0 : (__mmask32{1} << left) - 1;
          return _mm512_maskz_loadu_epi16(valid, x + at);
        });
}

// A pass: tokens [first, first + count) of a projection. Their packed columns lie segment by segment, in each token by
// token, at `x`.
struct Pass {
  int64_t first, count;
  bf16* x;
};

KDELTA_INLINE Pass pass_at(const Projection& p, int64_t first, bf16* packed) {
  const int64_t most = pass_tokens(p.T), left = p.T - first;
  return {first, left < most ? left : most, packed + first * packed_columns(p.w.cols)};
}

// Tokens [begin, end) of p to their places in `packed`.
template <class F>
KDELTA_INLINE void deal_tokens(const Projection& p, int64_t begin, int64_t end, bf16* packed) {
  const int64_t most = pass_tokens(p.T), K = p.w.cols;
  for (int64_t t = begin; t < end; ++t) {
    const Pass pass = pass_at(p, t / most * most, packed);
    for (int64_t k = 0; k < K; k += kSegment) {
      const Segment s = segment_at<F>(k, K);
      deal_token<F>(p.token<bf16>(t) + k, s, pass.x + k * pass.count + (t - pass.first) * s.padded);
    }
  }
}

// Sums ---------------------------------------------------------------------------------------------------------------

// Lanes of TT x 4 accumulators added up by one tree each; added to `sums` [token][4 rows], or stored there.
template <int TT>
KDELTA_INLINE void keep_sums(const __m512 (&acc)[TT][4], bool first, float* sums) {
  __m512 four[TT];  // in each 128-bit lane: partial sums of the four rows
#pragma GCC unroll 6
  for (int t = 0; t < TT; ++t) {
    const __m512d ab = _mm512_castps_pd(
        _mm512_add_ps(_mm512_unpacklo_ps(acc[t][0], acc[t][1]), _mm512_unpackhi_ps(acc[t][0], acc[t][1])));
    const __m512d cd = _mm512_castps_pd(
        _mm512_add_ps(_mm512_unpacklo_ps(acc[t][2], acc[t][3]), _mm512_unpackhi_ps(acc[t][2], acc[t][3])));
    four[t] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd)), _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd)));
  }
#pragma GCC unroll 2
  for (int t = 0; t < TT; t += 4) {
    const auto at = [&](int i) __attribute__((always_inline)) {
      return four[t + i < TT ? t + i : t];
    };
    const auto halves = [](__m512 a, __m512 b) __attribute__((always_inline)) {
      return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    };
    const __m512 lo = halves(at(0), at(1)), hi = halves(at(2), at(3));
    __m512 sum = _mm512_add_ps(_mm512_shuffle_f32x4(lo, hi, 0x88), _mm512_shuffle_f32x4(lo, hi, 0xdd));
    const auto valid = static_cast<__mmask16>(TT - t >= 4 ? 0xffffu : (1u << 4 * (TT - t)) - 1);
    if (!first) sum = _mm512_add_ps(_mm512_maskz_loadu_ps(valid, sums + 4 * t), sum);
    _mm512_mask_storeu_ps(sums + 4 * t, valid, sum);
  }
}

template <int TT>
KDELTA_INLINE void zero(__m512 (&acc)[TT][4]) {
#pragma GCC unroll 6
  for (int t = 0; t < TT; ++t)
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) acc[t][r] = _mm512_setzero_ps();
}

KDELTA_INLINE __m512 multiply_add(__m512 sum, __m512i w, __m512i x) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(w), reinterpret_cast<__m512bh>(x));
}

// Four rows of unpacked words, `stride` apart, times TT tokens, `columns` of one segment.
template <int TT>
__attribute__((noinline)) void multiply_tile(const bf16* w, int64_t stride, const bf16* x, int64_t columns, bool first,
                                             float* sums) {
  __m512 acc[TT][4];
  zero<TT>(acc);
  for (int64_t c = 0; c < columns; c += 32) {
    __m512i rows[4];
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) rows[r] = _mm512_loadu_si512(w + r * stride + c);
#pragma GCC unroll 6
    for (int t = 0; t < TT; ++t) {
      const __m512i token = _mm512_load_si512(x + t * columns + c);
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r) acc[t][r] = multiply_add(acc[t][r], rows[r], token);
    }
  }
  keep_sums<TT>(acc, first, sums);
}

// Few tokens: rows straight from the file -----------------------------------------------------------------------------

// A row of weights and the lead of its prefetch. Rows past the end repeat the last one; nobody stores their sums.
struct FileRow {
  const uint8_t* codes;
  const uint8_t* scales;
  int64_t code_lead, scale_lead;
};

// The lines wanted are those of the same columns some rows on: file order is memory order, and 12 KB of lead leaves
// memory the time it takes. Rows of bf16 are fetched only when they are short: in a long one the processor's own
// prefetch is faster.
inline constexpr int64_t kLeadBytes = 12 << 10, kShortRowBytes = 4 << 10;
inline constexpr int64_t kFileTokenBytes = 24 << 10;  // half of L1

KDELTA_INLINE FileRow file_row(const Matrix& w, int64_t n) {
  const int64_t row = n < w.rows ? n : w.rows - 1, rows_on = (kLeadBytes / w.row_bytes + 3) / 4 * 4 + 4;
  return {w.row(row), w.scale == nullptr ? nullptr : w.scale_row(row), rows_on * w.row_bytes,
          rows_on * w.scale_row_bytes};
}

// (kTop - code) << 7 in both words of lane b for block b of the 512 columns from `k`; blocks past the end of the row
// read as kTop. `outside` becomes true when a code has no exact form.
template <class F>
KDELTA_INLINE __m512i row_drops(const FileRow& row, int64_t k, int64_t K, bool& outside) {
  const int64_t block = k / kMxBlock, left = K / kMxBlock - block;
  const __mmask16 valid = left >= 16 ? __mmask16{0xffff} : static_cast<__mmask16>((1u << left) - 1);
  const __m128i codes = _mm_mask_loadu_epi8(_mm_set1_epi8(static_cast<char>(F::kTop)), valid, row.scales + block);
  _mm_prefetch(reinterpret_cast<const char*>(row.scales + block + row.scale_lead), _MM_HINT_T0);
  __mmask16 lanes;
  const __m512i drops = scale_drop<F>(_mm512_cvtepu8_epi32(codes), lanes);
  outside |= lanes != 0;
  return drops;
}

// Lane i of a step: the block of its columns, counted from the start of the 512.
template <class F>
KDELTA_INLINE __m512i block_of_lane() {
  const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  return _mm512_srli_epi32(lanes, F::kVectors == 4 ? 2 : 3);
}

// Four rows x TT tokens over one segment; kFetch: what comes kLeadBytes later is fetched. Not inlined: its loops are
// big, and there is one for every TT.
template <class F, int TT, bool kFetch>
__attribute__((noinline)) void multiply_rows(const FileRow (&rows)[4], const Segment& s, int64_t K, const bf16* x,
                                             bool first, bool (&outside)[4], float* sums) {
  constexpr int kV = F::kVectors;
  __m512 acc[TT][4];
  zero<TT>(acc);
  __m512i drops[4] = {}, blocks = _mm512_setzero_si512();
  auto step = [&](int64_t c, auto load) __attribute__((always_inline)) {
    if constexpr (F::kScaled)
      if (c % kScaleSpan == 0) {
        blocks = block_of_lane<F>();
#pragma GCC unroll 4
        for (int r = 0; r < 4; ++r) drops[r] = row_drops<F>(rows[r], s.k + c, K, outside[r]);
      }
    const auto codes = [&](int r) __attribute__((always_inline)) {
      return rows[r].codes + (s.k + c) * 2 / kV;
    };
    if constexpr (kFetch)
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r)
        _mm_prefetch(reinterpret_cast<const char*>(codes(r) + rows[r].code_lead), _MM_HINT_T0);
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
      __m512i words[kV];
      F::expand(load(codes(r)), F::kScaled ? _mm512_permutexvar_epi32(blocks, drops[r]) : blocks, words);
#pragma GCC unroll 4
      for (int v = 0; v < kV; ++v)
#pragma GCC unroll 6
        for (int t = 0; t < TT; ++t)
          acc[t][r] = multiply_add(acc[t][r], words[v], _mm512_load_si512(x + t * s.padded + c + 32 * v));
    }
    if constexpr (F::kScaled) blocks = _mm512_add_epi32(blocks, _mm512_set1_epi32(kV));
  };
  const int64_t whole = s.count / (32 * kV) * (32 * kV);
  for (int64_t c = 0; c < whole; c += 32 * kV)
    step(
        c, [](const uint8_t* p) __attribute__((always_inline)) { return _mm512_loadu_si512(p); });
  if (whole < s.count) {
    const __mmask64 valid = (__mmask64{1} << ((s.count - whole) * 2 / kV)) - 1;
    step(
        whole, [valid](const uint8_t* p) __attribute__((always_inline)) { return _mm512_maskz_loadu_epi8(valid, p); });
  }
  keep_sums<TT>(acc, first, sums);
}

// f(integral constant) for `tokens` of 1 .. kMost.
template <int kMost, class F>
KDELTA_INLINE void with_tokens(int64_t tokens, F&& f) {
  if constexpr (kMost > 1) {
    if (tokens < kMost) return with_tokens<kMost - 1>(tokens, f);
  }
  f(std::integral_constant<int, kMost>{});
}

// Whether a pass of `tokens` over rows of K columns reads the rows as they lie: few tokens do; and more, when rows need
// no unpacking and all of the tokens stay in L1 while four rows pass.
template <class F>
KDELTA_INLINE bool reads_file_rows(int64_t tokens, int64_t K) {
  return tokens <= F::kFileTokens || (!F::kScaled && tokens * K * 2 <= kFileTokenBytes);
}

// Columns [k, end) of the panel at n, all tokens of a pass.
template <class F>
KDELTA_INLINE void multiply_few(const Matrix& w, int64_t n, const Pass& pass, int64_t k, int64_t end,
                                __mmask16& outside, float* sums) {
  constexpr int kMost = F::kFileTokens < kTokenTile ? F::kFileTokens : kTokenTile;
  for (int64_t quad = 0; quad < 4 && n + 4 * quad < w.rows; ++quad) {
    FileRow rows[4];
    bool out[4] = {};
    for (int64_t r = 0; r < 4; ++r) rows[r] = file_row(w, n + 4 * quad + r);
    for (int64_t at = k; at < end; at += kSegment) {
      const Segment s = segment_at<F>(at, end);
      for (int64_t t = 0; t < pass.count; t += kTokenTile)
        with_tokens<kMost>(
            pass.count - t, [&](auto tokens) __attribute__((always_inline)) {
              constexpr int kTokens = decltype(tokens)::value;
              const bf16* x = pass.x + at * pass.count + t * s.padded;
              float* to = sums + (t / kTokenTile * 4 + quad) * kTileFloats16;
              if (F::kScaled || w.row_bytes <= kShortRowBytes)
                multiply_rows<F, kTokens, true>(rows, s, w.cols, x, at == 0, out, to);
              else
                multiply_rows<F, kTokens, F::kScaled>(rows, s, w.cols, x, at == 0, out, to);
            });
    }
    for (int64_t r = 0; r < 4 && n + 4 * quad + r < w.rows; ++r)
      outside |= static_cast<__mmask16>((out[r] ? 1u : 0u) << (4 * quad + r));
  }
}

// Many tokens: 8 rows unpacked ---------------------------------------------------------------------------------------

// One row over one segment.
template <class F>
KDELTA_INLINE bool unpack_row(const FileRow& row, const Segment& s, int64_t K, bf16* dst) {
  constexpr int kV = F::kVectors;
  bool outside = false;
  __m512i drops = _mm512_setzero_si512(), blocks = drops;
  for (int64_t c = 0; c < s.padded; c += 32 * kV) {
    if constexpr (F::kScaled)
      if (c % kScaleSpan == 0) blocks = block_of_lane<F>(), drops = row_drops<F>(row, s.k + c, K, outside);
    const int64_t left = (s.count - c) * 2 / kV;
    const __mmask64 valid = left >= 64 ? ~__mmask64{0} : (__mmask64{1} << left) - 1;
    const __m512i codes = _mm512_maskz_loadu_epi8(valid, row.codes + (s.k + c) * 2 / kV);
    __m512i words[kV];
    F::expand(codes, F::kScaled ? _mm512_permutexvar_epi32(blocks, drops) : drops, words);
    if constexpr (F::kScaled) blocks = _mm512_add_epi32(blocks, _mm512_set1_epi32(kV));
#pragma GCC unroll 4
    for (int v = 0; v < kV; ++v) _mm512_store_si512(dst + c + 32 * v, words[v]);
  }
  return outside;
}

// Rows [n, n + count) over one segment; returns those that have no exact form. Not inlined: constants of the decoder
// must not take registers from the tiles.
template <class F>
__attribute__((noinline)) unsigned unpack_rows(const Matrix& w, int64_t n, int64_t count, const Segment& s,
                                               int64_t scale_lead, bf16* words) {
  unsigned outside = 0;
  for (int64_t r = 0; r < count; ++r) {
    const FileRow row{w.row(n + r), F::kScaled ? w.scale_row(n + r) : nullptr, 0, scale_lead};
    outside |= (unpack_row<F>(row, s, w.cols, words + r * s.padded) ? 1u : 0u) << r;
  }
  return outside;
}

// The weights that are unpacked next: `lines` cache lines from `row` on in each of kUnpackRows rows.
struct NextWeights {
  const uint8_t* row;
  int64_t stride, lines;
  int64_t line = 0, rows = 0;  // fetched already: `rows` whole ones, then `line` lines

  // The next `count` lines into L2, so that memory works while tiles are multiplied.
  KDELTA_INLINE void fetch(int64_t count) {
    for (; count > 0 && rows < kUnpackRows; --count) {
      _mm_prefetch(reinterpret_cast<const char*>(row + line * 64), _MM_HINT_T1);
      if (++line == lines) line = 0, ++rows, row += stride;
    }
  }
};

template <int TT>
KDELTA_INLINE void multiply_quads(const bf16* words, int64_t rows, const bf16* x, int64_t columns, bool first,
                                  float* sums) {
  for (int64_t r = 0; r < rows; r += 4, words += 4 * columns, sums += kTileFloats16)
    multiply_tile<TT>(words, columns, x, columns, first, sums);
}

// All tokens of a pass against one segment of `rows` unpacked rows. `cold`: nobody has read these tokens yet, so each
// tile has the next one fetched.
KDELTA_INLINE void multiply_unpacked(const bf16* words, int64_t rows, const bf16* x, int64_t tokens, int64_t columns,
                                     bool first, NextWeights next, bool cold, float* sums) {
  const int64_t tiles = (tokens + kTokenTile - 1) / kTokenTile;
  const int64_t part = (kUnpackRows * next.lines + tiles - 1) / tiles;
  for (int64_t i = 0; i < tiles; ++i, x += kTokenTile * columns, sums += 4 * kTileFloats16) {
    next.fetch(part);
    if (cold)
      for (int64_t c = 0; c < kTokenTile * columns; c += 32)
        _mm_prefetch(reinterpret_cast<const char*>(x + kTokenTile * columns + c), _MM_HINT_T1);
    with_tokens<kTokenTile>(
        tokens - i * kTokenTile, [&](auto count) __attribute__((always_inline)) {
          multiply_quads<decltype(count)::value>(words, rows, x, columns, first, sums);
        });
  }
}

// Columns [k, end) of the panel at n, all tokens of a pass; k is a multiple of the segment.
template <class F>
KDELTA_INLINE void multiply_many(const Matrix& w, int64_t n, const Pass& pass, int64_t k, int64_t end, bool cold,
                                 bf16* words, __mmask16& outside, float* sums) {
  for (int64_t at = k; at < end; at += kSegment)
    for (int64_t r = 0; r < kPanelRows && n + r < w.rows; r += kUnpackRows) {
      const Segment segment = segment_at<F>(at, end);
      const int64_t left = w.rows - n - r, rows = left < kUnpackRows ? left : kUnpackRows;
      // Next come the other rows of the panel, then its following segment, then the start of this range in the next.
      const bool next_segment = r + kUnpackRows == kPanelRows, next_panel = next_segment && at + kSegment >= end;
      const int64_t row = next_panel ? kPanelRows : next_segment ? 0 : kUnpackRows;
      const int64_t column = next_panel ? k : next_segment ? at + kSegment : at;
      const int64_t columns = end - column < kSegment ? end - column : kSegment;
      const NextWeights next{w.row(n + row) + column * 2 / F::kVectors, w.row_bytes, columns / (32 * F::kVectors)};
      const int64_t scale_lead = (row - r) * w.scale_row_bytes + (column - at) / kMxBlock;
      outside |= static_cast<__mmask16>(unpack_rows<F>(w, n + r, rows, segment, scale_lead, words) << r);
      multiply_unpacked(words, rows, pass.x + at * pass.count, pass.count, segment.padded, at == 0, next,
                        cold && r == 0, sums + r / 4 * kTileFloats16);
    }
}

template <class F>
KDELTA_INLINE void multiply_columns(const Matrix& w, int64_t n, const Pass& pass, int64_t k, int64_t end, bool cold,
                                    bf16* words, __mmask16& outside, float* sums) {
  if (reads_file_rows<F>(pass.count, w.cols)) return multiply_few<F>(w, n, pass, k, end, outside, sums);
  multiply_many<F>(w, n, pass, k, end, cold, words, outside, sums);
}

// Outputs of the panel at n for `count` tokens from `first`.
template <class Out>
KDELTA_INLINE void store_panel(const Projection& p, int64_t n, int64_t first, int64_t count, __mmask16 outside,
                               const float* sums) {
  const __mmask16 rows = stored_rows(p, n, outside);
  for (int64_t t = 0; t < count; ++t) {
    const float* tile = sums + t / kTokenTile * (4 * kTileFloats16) + t % kTokenTile * 4;
    __m512 sum = _mm512_castps128_ps512(_mm_loadu_ps(tile));
    sum = _mm512_insertf32x4(sum, _mm_loadu_ps(tile + kTileFloats16), 1);
    sum = _mm512_insertf32x4(sum, _mm_loadu_ps(tile + 2 * kTileFloats16), 2);
    sum = _mm512_insertf32x4(sum, _mm_loadu_ps(tile + 3 * kTileFloats16), 3);
    const Out* addend = p.addend.null() ? nullptr : p.addend.template at<const Out>(first + t) + n;
    store_outputs(sum, addend, p.out.template at<Out>(first + t) + n, rows);
  }
}

// `panels` panels (at most kPackPanels) at row n, all tokens.
template <class F, class Out>
KDELTA_INLINE void multiply_group(const Projection& p, bf16* packed, int64_t n, int64_t panels, const PackScratch& s) {
  __mmask16 outside[kPackPanels] = {};
  const int64_t K = p.w.cols;
  for (int64_t first = 0; first < p.T;) {
    const Pass pass = pass_at(p, first, packed);
    const int64_t columns = pass_columns(pass.count, K);
    const int64_t floats = (pass.count + kTokenTile - 1) / kTokenTile * 4 * kTileFloats16;
    for (int64_t k = 0; k < K; k += columns)
      for (int64_t i = 0; i < panels; ++i)
        multiply_columns<F>(p.w, n + 16 * i, pass, k, k + columns < K ? k + columns : K, i == 0, s.words, outside[i],
                            s.sums + i * floats);
    for (int64_t i = 0; i < panels; ++i)
      store_panel<Out>(p, n + 16 * i, pass.first, pass.count, outside[i], s.sums + i * floats);
    first += pass.count;
  }
  for (int64_t i = 0; i < panels; ++i)
    if (outside[i] != 0) exact_rows<Out>(p, n + 16 * i, outside[i], s.exact_row);
}

// For cpu/packed.h.
struct PackKernel {
  using Sizes = PackSizes;

  static KDELTA_INLINE void pack(const Projection& p, int64_t begin, int64_t end, void* packed) {
    dispatch_row_words(p.w.dtype,
                       [&](auto words) { deal_tokens<decltype(words)>(p, begin, end, static_cast<bf16*>(packed)); });
  }
  static KDELTA_INLINE void multiply(const Projection& p, void* packed, int64_t begin, int64_t end, void* scratch) {
    const PackScratch s = pack_scratch(scratch, p.T, p.w.cols);
    dispatch_row_words(p.w.dtype, [&](auto words) {
      dispatch_activation(p.out.dtype, [&](auto out) {
        for (int64_t i = begin; i < end; i += kPackPanels) {
          const int64_t panels = end - i < kPackPanels ? end - i : kPackPanels;
          multiply_group<decltype(words), decltype(out)>(p, static_cast<bf16*>(packed), i * kPanelRows, panels, s);
        }
      });
    });
  }
};

}  // namespace kdelta::inline avx512_bf16
