// Projection of bf16 tokens with AMX: weight rows are the A operand, [16 rows][32 columns] straight from the file when
// they are bf16 and few tokens use them, else copied or dequantised once into L2 tiles; tokens are packed as B. Column
// blocks are added in order into fp32 tiles, so the bits of an output do not depend on how many tokens share its tile,
// nor on its place there.
#pragma once

#include <cstring>

#include "kdelta/ops/common/cpu/amx_sizes.h"
#include "kdelta/ops/common/cpu/panel_outputs.h"
#include "kdelta/ops/common/cpu/weight_words.h"

namespace kdelta {

inline constexpr int64_t kTileFloats = kTileBytes / 4;

struct TileScratch {
  uint8_t* weights;  // [panel][column tile] tiles of 1 KB
  float* products;   // [token block][panel] tiles of 1 KB
  __m512i* drops;    // [panel][16 rows], lane b: block b of the current 16
  float* exact_row;  // [K]
};

KDELTA_INLINE TileScratch tile_scratch(void* scratch) {
  uint8_t* weights = static_cast<uint8_t*>(scratch);
  uint8_t* products = weights + kTilePanels * (kTileColumns / 32) * kTileBytes;
  uint8_t* drops = products + kTilePanels * (kTilePass / 16) * kTileBytes;
  return {weights, reinterpret_cast<float*>(products), reinterpret_cast<__m512i*>(drops),
          reinterpret_cast<float*>(drops + kTilePanels * 16 * 64)};
}

// Tokens [16 * block, ...) of p as B tiles: per 32 columns 16 rows (pairs) of `columns` dwords; missing tokens and
// columns past K are zero. `columns` is 16, or T when there are fewer tokens.
inline constexpr int64_t kTokenBlock = 16;
template <class F>
KDELTA_INLINE void pack_token_block(const Projection& p, int64_t block, int64_t columns, uint8_t* dst) {
  const int64_t K = p.w.cols, first = block * kTokenBlock, left = p.T - first, count = left < 16 ? left : 16;
  const auto lanes = static_cast<__mmask16>((1u << columns) - 1);
  for (int64_t k = 0; k < K; k += 32, dst += 64 * columns) {
    const __mmask32 valid = K - k >= 32 ? ~__mmask32{0} : (__mmask32{1} << (K - k)) - 1;
    if (columns == 1) {  // pairs of one token in order: its row as it is
      _mm512_storeu_si512(dst, F::deal(_mm512_maskz_loadu_epi16(valid, p.token<bf16>(first) + k)));
      continue;
    }
    __m512i v[16];
    for (int64_t t = 0; t < 16; ++t)
      v[t] =
          t < count ? F::deal(_mm512_maskz_loadu_epi16(valid, p.token<bf16>(first + t) + k)) : _mm512_setzero_si512();
    transpose16(v);
    for (int64_t i = 0; i < 16; ++i) _mm512_mask_storeu_epi32(dst + i * columns * 4, lanes, v[i]);
  }
}

// One A tile from memory that no tile load may take as it is: 32 columns from k of `count` rows, zeros elsewhere.
template <class F>
KDELTA_INLINE void fill_tile(const Matrix& w, int64_t n, int64_t count, int64_t k, const __m512i* drops, uint8_t* dst) {
  const int* drop = reinterpret_cast<const int*>(drops) + k % kScaleSpan / kMxBlock;
  const uint8_t* row = w.row(n) + k * 2 / F::kPairs;
  const int64_t stride = w.row_bytes, left = w.cols - k;
  const __mmask32 valid = left >= 32 ? ~__mmask32{0} : (__mmask32{1} << left) - 1;
  auto words = [&](int64_t r) __attribute__((always_inline)) {
    if constexpr (F::kScaled)
      return F::block(row + r * stride, _mm512_set1_epi32(drop[r * 16]));
    else
      return _mm512_maskz_loadu_epi16(valid, row + r * stride);
  };
  if (count == 16) {
#pragma GCC unroll 16
    for (int64_t r = 0; r < 16; ++r) _mm512_store_si512(dst + r * 64, words(r));
    return;
  }
  for (int64_t r = 0; r < 16; ++r) _mm512_store_si512(dst + r * 64, r < count ? words(r) : _mm512_setzero_si512());
}

// A operand of one panel: tile i of a column range is at data + i * step, its rows `stride` apart.
struct PanelTiles {
  const uint8_t* data;
  int64_t stride, step;
};

// Filled scratch for columns [k, k + 32 * tiles) of the panel at n.
template <class F>
KDELTA_INLINE PanelTiles filled_tiles(const Matrix& w, int64_t n, int64_t k, int64_t tiles, const __m512i* drops,
                                      uint8_t* scratch) {
  const int64_t count = w.rows - n < 16 ? w.rows - n : 16;
  for (int64_t i = 0; i < tiles; ++i) fill_tile<F>(w, n, count, k + 32 * i, drops, scratch + i * kTileBytes);
  return {scratch, 64, kTileBytes};
}

// PA panels x PB token blocks over `tiles` column tiles. Tokens: tile i of block b at tokens[b] + i * 64 * columns.
// Products of (panel a, block b) rest at products + (b * kTilePanels + a) tiles.
template <class Tiles, int PA, int PB>
KDELTA_INLINE void multiply_block(const PanelTiles* a, const uint8_t* const* tokens, int64_t columns, int64_t tiles,
                                  bool first, float* products) {
  constexpr int64_t kTile = kTileFloats, kBlock = kTilePanels * kTile;
  auto products_tile = [&](auto each) __attribute__((always_inline)) {
    each.template operator()<0>(products);
    if constexpr (PB == 2) each.template operator()<1>(products + kBlock);
    if constexpr (PA == 2) each.template operator()<2>(products + kTile);
    if constexpr (PA == 2 && PB == 2) each.template operator()<3>(products + kBlock + kTile);
  };
  if (first) {
    products_tile([]<int kTileIndex>(float*) __attribute__((always_inline)) { Tiles::template zero<kTileIndex>(); });
  } else {
    products_tile([]<int kTileIndex>(float* q)
                      __attribute__((always_inline)) { Tiles::template load<kTileIndex>(q, 64); });
  }
  // Each operand is loaded for the next step behind its last use in this one, well before its first there: where two
  // hardware threads share a core, there are no spare tile registers to hide a load behind a product.
  auto weights = [&]<int kPanel>(int64_t i) __attribute__((always_inline)) {
    if constexpr (kPanel < PA) Tiles::template load<4 + kPanel>(a[kPanel].data + i * a[kPanel].step, a[kPanel].stride);
  };
  auto token = [&]<int kBlock>(int64_t i) __attribute__((always_inline)) {
    if constexpr (kBlock < PB) Tiles::template load<6 + kBlock>(tokens[kBlock] + i * 64 * columns, 4 * columns);
  };
  auto step = [&](int64_t next, auto more) __attribute__((always_inline)) {
    constexpr bool kMore = decltype(more)::value;
    Tiles::template multiply<0, 4, 6>();
    if constexpr (PA == 2) Tiles::template multiply<2, 5, 6>();
    if constexpr (kMore) token.template operator()<0>(next);
    if constexpr (PB == 2) Tiles::template multiply<1, 4, 7>();
    if constexpr (kMore) weights.template operator()<0>(next);
    if constexpr (PA == 2 && PB == 2) Tiles::template multiply<3, 5, 7>();
    if constexpr (kMore) weights.template operator()<1>(next), token.template operator()<1>(next);
  };
  weights.template operator()<0>(0), token.template operator()<0>(0);
  weights.template operator()<1>(0), token.template operator()<1>(0);
  for (int64_t i = 1; i < tiles; ++i) step(i, std::true_type{});
  step(0, std::false_type{});
  products_tile([]<int kTileIndex>(float* q)
                    __attribute__((always_inline)) { Tiles::template store<kTileIndex>(q, 64); });
}

// Packed tokens of one projection: block b at data + b * bytes_per_block.
struct PackedTokens {
  const uint8_t* data;
  int64_t columns, blocks;

  KDELTA_INLINE const uint8_t* tile(int64_t block, int64_t column_tile, int64_t K) const {
    return data + (block * tile_columns(K) + column_tile) * 64 * columns;
  }
};

// T > 0.
KDELTA_INLINE PackedTokens packed_tokens(const Projection& p, const uint8_t* data) {
  return {data, p.T < kTokenBlock ? p.T : kTokenBlock, (p.T + kTokenBlock - 1) / kTokenBlock};
}

// Token blocks [begin, end) against `panels` panels of one column block.
template <class Tiles>
KDELTA_INLINE void multiply_blocks(const Projection& p, const PackedTokens& x, int64_t begin, int64_t end,
                                   const PanelTiles* a, int64_t panels, int64_t k, int64_t tiles, float* products) {
  for (int64_t i = 0; i < panels; i += 2)
    for (int64_t b = begin; b < end; b += 2) {
      const bool two_panels = i + 1 < panels, two_blocks = b + 1 < end;
      const uint8_t* tokens[2] = {x.tile(b, k / 32, p.w.cols), two_blocks ? x.tile(b + 1, k / 32, p.w.cols) : nullptr};
      float* at = products + ((b - begin) * kTilePanels + i) * kTileFloats;
      if (two_panels && two_blocks)
        multiply_block<Tiles, 2, 2>(a + i, tokens, x.columns, tiles, k == 0, at);
      else if (two_panels)
        multiply_block<Tiles, 2, 1>(a + i, tokens, x.columns, tiles, k == 0, at);
      else if (two_blocks)
        multiply_block<Tiles, 1, 2>(a + i, tokens, x.columns, tiles, k == 0, at);
      else
        multiply_block<Tiles, 1, 1>(a + i, tokens, x.columns, tiles, k == 0, at);
    }
}

// Product tiles [row][token] of one panel and the token blocks [begin, end) to out rows, addend added.
template <class Out>
KDELTA_INLINE void store_products(const Projection& p, int64_t n, int64_t begin, int64_t end, __mmask16 rows,
                                  const float* products) {
  for (int64_t b = begin; b < end; ++b, products += kTilePanels * kTileFloats) {
    __m512i v[16];
    for (int r = 0; r < 16; ++r) v[r] = _mm512_load_si512(products + r * 16);
    transpose16(v);
    const int64_t first = b * kTokenBlock, left = p.T - first, count = left < 16 ? left : 16;
    for (int64_t t = 0; t < count; ++t) {
      const Out* addend = p.addend.null() ? nullptr : p.addend.template at<const Out>(first + t) + n;
      store_outputs(_mm512_castsi512_ps(v[t]), addend, p.out.template at<Out>(first + t) + n, rows);
    }
  }
}

template <class F>
KDELTA_INLINE __mmask16 panel_drops(const Matrix& w, int64_t n, int64_t k, int64_t ahead, __m512i* drops) {
  if constexpr (!F::kScaled)
    return 0;
  else
    return scale_drops_by_row<F>(w, n, w.rows - n < 16 ? w.rows - n : 16, k / kMxBlock, ahead, drops);
}

// Up to kTilePanels panels starting at row n, token blocks [begin, end) of one pass: weights become tiles in L2, column
// block by column block.
template <class Tiles, class F, class Out>
void multiply_pass(const Projection& p, const PackedTokens& x, int64_t begin, int64_t end, int64_t n, int64_t panels,
                   const TileScratch& s, __mmask16* outside) {
  PanelTiles a[kTilePanels];
  for (int64_t k = 0; k < p.w.cols; k += kTileColumns) {
    const int64_t left = tile_columns(p.w.cols - k), tiles = left < kTileColumns / 32 ? left : kTileColumns / 32;
    for (int64_t i = 0; i < panels; ++i) {
      __m512i* drops = s.drops + 16 * i;
      if (k % kScaleSpan == 0) outside[i] |= panel_drops<F>(p.w, n + 16 * i, k, 16 * kTilePanels, drops);
      a[i] = filled_tiles<F>(p.w, n + 16 * i, k, tiles, drops, s.weights + i * (kTileColumns / 32) * kTileBytes);
    }
    multiply_blocks<Tiles>(p, x, begin, end, a, panels, k, tiles, s.products);
  }
  for (int64_t i = 0; i < panels; ++i)
    store_products<Out>(p, n + 16 * i, begin, end, stored_rows(p, n + 16 * i, outside[i]),
                        s.products + i * kTileFloats);
}

template <class Tiles, class F, class Out>
void many_tokens(const Projection& p, const PackedTokens& x, int64_t n, int64_t panels, const TileScratch& s) {
  __mmask16 outside[kTilePanels] = {};
  for (int64_t b = 0; b < x.blocks; b += kTilePass / 16)
    multiply_pass<Tiles, F, Out>(p, x, b, b + kTilePass / 16 < x.blocks ? b + kTilePass / 16 : x.blocks, n, panels, s,
                                 outside);
  for (int64_t i = 0; i < panels; ++i)
    if (outside[i] != 0) exact_rows<Out>(p, n + 16 * i, outside[i], s.exact_row);
}

// Few tokens: the weights pass once, G panels at a time whose products stay in tile registers.

template <class Tiles, int G>
KDELTA_INLINE void zero_products() {
  Tiles::template zero<0>();
  if constexpr (G == 2) Tiles::template zero<1>();
}

template <class Tiles, int G>
KDELTA_INLINE void multiply_step(const PanelTiles* a, int64_t i, const uint8_t* tokens, int64_t columns) {
  Tiles::template load<6>(tokens, 4 * columns);
  Tiles::template load<4>(a[0].data + i * a[0].step, a[0].stride);
  Tiles::template multiply<0, 4, 6>();
  if constexpr (G == 2) {
    Tiles::template load<5>(a[1].data + i * a[1].step, a[1].stride);
    Tiles::template multiply<1, 5, 6>();
  }
}

template <class Tiles, int G, class Out>
KDELTA_INLINE void finish_few(const Projection& p, int64_t n, const __mmask16* outside, const TileScratch& s) {
  Tiles::template store<0>(s.products, 64);
  if constexpr (G == 2) Tiles::template store<1>(s.products + kTileFloats, 64);
  for (int64_t g = 0; g < G; ++g) {
    const int64_t at = n + 16 * g;
    store_products<Out>(p, at, 0, 1, stored_rows(p, at, outside[g]), s.products + g * kTileFloats);
    if (outside[g] != 0) exact_rows<Out>(p, at, outside[g], s.exact_row);
  }
}

// G whole panels of bf16 rows straight from the file. The next 512 bytes of each row are fetched meanwhile; the end of
// a row leads into the rows of the next group.
template <class Tiles, int G, class Out>
void few_from_file(const Projection& p, const PackedTokens& x, int64_t n, const TileScratch& s) {
  const Matrix& w = p.w;
  const int64_t whole = w.cols / 32;
  PanelTiles a[G];
  for (int64_t g = 0; g < G; ++g) a[g] = {w.row(n + 16 * g), w.row_bytes, 64};
  zero_products<Tiles, G>();
  for (int64_t i = 0; i < whole; ++i) {
    const int64_t next = 64 * i + 512 < 2 * w.cols ? 64 * i + 512 : 64 * i + 512 - 2 * w.cols + 16 * G * w.row_bytes;
    for (int64_t r = 0; r < 16 * G; ++r) _mm_prefetch(reinterpret_cast<const char*>(w.row(n + r)) + next, _MM_HINT_T0);
    multiply_step<Tiles, G>(a, i, x.tile(0, i, w.cols), x.columns);
  }
  if (whole < tile_columns(w.cols)) {
    for (int64_t g = 0; g < G; ++g)
      a[g] = filled_tiles<Bf16Words>(w, n + 16 * g, 32 * whole, 1, nullptr, s.weights + g * kTileBytes);
    multiply_step<Tiles, G>(a, 0, x.tile(0, whole, w.cols), x.columns);
  }
  const __mmask16 outside[G] = {};
  finish_few<Tiles, G, Out>(p, n, outside, s);
}

// Tiles unpacked ahead of the products that take them: their stores have reached L1 by then.
inline constexpr int64_t kTilesAhead = 4, kTileRing = 8;

// G panels unpacked into a ring of tiles. The same columns of the next group of rows are fetched into L2 meanwhile.
template <class Tiles, class F, int G, class Out>
void few_unpacked(const Projection& p, const PackedTokens& x, int64_t n, const TileScratch& s) {
  const Matrix& w = p.w;
  const int64_t tiles = tile_columns(w.cols), per_line = F::kPairs;
  __mmask16 outside[G] = {};
  zero_products<Tiles, G>();
  auto unpack = [&](int64_t i) __attribute__((always_inline)) {
    for (int64_t g = 0; g < G; ++g) {
      const int64_t first = n + 16 * g;
      __m512i* drops = s.drops + 16 * g;
      if (32 * i % kScaleSpan == 0) outside[g] |= panel_drops<F>(w, first, 32 * i, 16 * G, drops);
      if (i % per_line == g % per_line)
        for (int64_t r = 0; r < 16; ++r)
          _mm_prefetch(reinterpret_cast<const char*>(w.row(first + r + 16 * G) + i * 64 / F::kPairs), _MM_HINT_T1);
      fill_tile<F>(w, first, w.rows - first < 16 ? w.rows - first : 16, 32 * i, drops,
                   s.weights + (i % kTileRing * G + g) * kTileBytes);
    }
  };
  PanelTiles a[G];
  for (int64_t g = 0; g < G; ++g) a[g] = {s.weights + g * kTileBytes, 64, G * kTileBytes};
  for (int64_t i = 0; i < tiles + kTilesAhead; ++i) {
    if (i < tiles) unpack(i);
    const int64_t done = i - kTilesAhead;
    if (done >= 0) multiply_step<Tiles, G>(a, done % kTileRing, x.tile(0, done, w.cols), x.columns);
  }
  finish_few<Tiles, G, Out>(p, n, outside, s);
}

// Products of one tile wait for each other (52 cycles), so panels go in pairs; more would be more streams than memory
// likes.
template <class Tiles, class F, class Out>
KDELTA_INLINE int64_t few_tokens(const Projection& p, const PackedTokens& x, int64_t n, int64_t panels,
                                 const TileScratch& s) {
  const bool two = panels >= 2;
  if constexpr (!F::kScaled) {
    if (two && n + 32 <= p.w.rows) return few_from_file<Tiles, 2, Out>(p, x, n, s), 2;
    if (n + 16 <= p.w.rows) return few_from_file<Tiles, 1, Out>(p, x, n, s), 1;
  }
  if (two) return few_unpacked<Tiles, F, 2, Out>(p, x, n, s), 2;
  return few_unpacked<Tiles, F, 1, Out>(p, x, n, s), 1;
}

// For cpu/packed.h, on any Tiles with the members of AmxTiles: a test runs it on emulated ones.
template <class Tiles>
struct TileKernel {
  using Sizes = TileSizes;

  static KDELTA_INLINE void pack(const Projection& p, int64_t begin, int64_t end, void* packed) {
    auto* at = static_cast<uint8_t*>(packed);
    const PackedTokens x = packed_tokens(p, at);
    dispatch_words(p.w.dtype, [&](auto words) {
      for (int64_t b = begin / kTokenBlock; b * kTokenBlock < end; ++b)
        pack_token_block<decltype(words)>(p, b, x.columns, at + b * tile_columns(p.w.cols) * 64 * x.columns);
    });
  }
  static KDELTA_INLINE void multiply(const Projection& p, void* packed, int64_t begin, int64_t end, void* scratch) {
    const PackedTokens x = packed_tokens(p, static_cast<uint8_t*>(packed));
    const TileScratch s = tile_scratch(scratch);
    Tiles::configure(static_cast<int>(x.columns));
    dispatch_words(p.w.dtype, [&](auto words) {
      dispatch_activation(p.out.dtype, [&](auto out) {
        using F = decltype(words);
        using Out = decltype(out);
        for (int64_t i = begin; i < end;) {
          const int64_t panels = end - i < kTilePanels ? end - i : kTilePanels;
          if (x.blocks == 1) {
            i += few_tokens<Tiles, F, Out>(p, x, i * kPanelRows, panels, s);
          } else {
            many_tokens<Tiles, F, Out>(p, x, i * kPanelRows, panels, s);
            i += panels;
          }
        }
      });
    });
    Tiles::release();
  }
};

}  // namespace kdelta
