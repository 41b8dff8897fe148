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
  uint8_t* drops = products + kTilePanels * (kTileTokens / 16) * kTileBytes;
  return {weights, reinterpret_cast<float*>(products), reinterpret_cast<__m512i*>(drops),
          reinterpret_cast<float*>(drops + kTilePanels * 16 * 64)};
}

// Tokens [16 * block, ...) of p as B tiles: per 32 columns 16 rows (pairs) of `columns` dwords; missing tokens and
// columns past K are zero. `columns` is 16, or T when there are fewer tokens.
inline constexpr int64_t kTokenBlock = 16;
KDELTA_INLINE void pack_token_block(const Projection& p, int64_t block, int64_t columns, uint8_t* dst) {
  const int64_t K = p.w.cols, first = block * kTokenBlock, left = p.T - first, count = left < 16 ? left : 16;
  const auto lanes = static_cast<__mmask16>((1u << columns) - 1);
  for (int64_t k = 0; k < K; k += 32, dst += 64 * columns) {
    const __mmask32 valid = K - k >= 32 ? ~__mmask32{0} : (__mmask32{1} << (K - k)) - 1;
    if (columns == 1) {  // pairs of one token in order: its row as it is
      _mm512_storeu_si512(dst, _mm512_maskz_loadu_epi16(valid, p.token<bf16>(first) + k));
      continue;
    }
    __m512i v[16];
    for (int64_t t = 0; t < 16; ++t)
      v[t] = t < count ? _mm512_maskz_loadu_epi16(valid, p.token<bf16>(first + t) + k) : _mm512_setzero_si512();
    transpose16(v);
    for (int64_t i = 0; i < 16; ++i) _mm512_mask_storeu_epi32(dst + i * columns * 4, lanes, v[i]);
  }
}

// One A tile from memory that no tile load may take as it is: 32 columns from k of `count` rows, zeros elsewhere.
template <class F>
KDELTA_INLINE void fill_tile(const Matrix& w, int64_t n, int64_t count, int64_t k, const __m512i* drops, uint8_t* dst) {
  const int64_t b = k % kScaleSpan / kMxBlock;
  const uint8_t* row = w.row(n) + k * 2 / F::kPairs;
  for (int64_t r = 0; r < 16; ++r, row += w.row_bytes) {
    __m512i words = _mm512_setzero_si512();
    if (r < count) {
      if constexpr (F::kScaled) {
        words = F::block(row, _mm512_set1_epi32(reinterpret_cast<const int*>(drops + r)[b]));
      } else {
        const int64_t left = w.cols - k;
        words = _mm512_maskz_loadu_epi16(left >= 32 ? ~__mmask32{0} : (__mmask32{1} << left) - 1, row);
      }
    }
    _mm512_store_si512(dst + r * 64, words);
  }
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
  for (int64_t i = 0; i < tiles; ++i) {
    const int64_t at = i * 64 * columns;
    Tiles::template load<4>(a[0].data + i * a[0].step, a[0].stride);
    Tiles::template load<6>(tokens[0] + at, 4 * columns);
    Tiles::template multiply<0, 4, 6>();
    if constexpr (PB == 2) {
      Tiles::template load<7>(tokens[1] + at, 4 * columns);
      Tiles::template multiply<1, 4, 7>();
    }
    if constexpr (PA == 2) {
      Tiles::template load<5>(a[1].data + i * a[1].step, a[1].stride);
      Tiles::template multiply<2, 5, 6>();
      if constexpr (PB == 2) Tiles::template multiply<3, 5, 7>();
    }
  }
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

// All token blocks against `panels` panels of one column block.
template <class Tiles>
KDELTA_INLINE void multiply_blocks(const Projection& p, const PackedTokens& x, const PanelTiles* a, int64_t panels,
                                   int64_t k, int64_t tiles, float* products) {
  for (int64_t i = 0; i < panels; i += 2)
    for (int64_t b = 0; b < x.blocks; b += 2) {
      const bool two_panels = i + 1 < panels, two_blocks = b + 1 < x.blocks;
      const uint8_t* tokens[2] = {x.tile(b, k / 32, p.w.cols), two_blocks ? x.tile(b + 1, k / 32, p.w.cols) : nullptr};
      float* at = products + (b * kTilePanels + i) * kTileFloats;
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

// Product tiles [row][token] of one panel to out rows, addend added.
template <class Out>
KDELTA_INLINE void store_products(const Projection& p, int64_t n, int64_t blocks, __mmask16 rows,
                                  const float* products) {
  for (int64_t b = 0; b < blocks; ++b, products += kTilePanels * kTileFloats) {
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

// The end of one panel: its products at s.products + i tiles, and the rows that were not for the tiles.
template <class Out>
KDELTA_INLINE void finish_panel(const Projection& p, const PackedTokens& x, int64_t n, int64_t i, __mmask16 outside,
                                const TileScratch& s) {
  store_products<Out>(p, n, x.blocks, stored_rows(p, n, outside), s.products + i * kTileFloats);
  if (outside != 0) exact_rows<Out>(p, n, outside, s.exact_row);
}

template <class F>
KDELTA_INLINE __mmask16 panel_drops(const Matrix& w, int64_t n, int64_t k, int64_t ahead, __m512i* drops) {
  if constexpr (!F::kScaled)
    return 0;
  else
    return scale_drops_by_row<F>(w, n, w.rows - n < 16 ? w.rows - n : 16, k / kMxBlock, ahead, drops);
}

// Up to kTilePanels panels starting at row n, many tokens: weights become tiles in L2, column block by column block.
template <class Tiles, class F, class Out>
void many_tokens(const Projection& p, const PackedTokens& x, int64_t n, int64_t panels, const TileScratch& s) {
  __mmask16 outside[kTilePanels] = {};
  PanelTiles a[kTilePanels];
  for (int64_t k = 0; k < p.w.cols; k += kTileColumns) {
    const int64_t left = tile_columns(p.w.cols - k), tiles = left < kTileColumns / 32 ? left : kTileColumns / 32;
    for (int64_t i = 0; i < panels; ++i) {
      __m512i* drops = s.drops + 16 * i;
      if (k % kScaleSpan == 0) outside[i] |= panel_drops<F>(p.w, n + 16 * i, k, 16 * kTilePanels, drops);
      a[i] = filled_tiles<F>(p.w, n + 16 * i, k, tiles, drops, s.weights + i * (kTileColumns / 32) * kTileBytes);
    }
    multiply_blocks<Tiles>(p, x, a, panels, k, tiles, s.products);
  }
  for (int64_t i = 0; i < panels; ++i) finish_panel<Out>(p, x, n + 16 * i, i, outside[i], s);
}

// Column tiles per step of few_tokens: short, so that dequantising the next ones overlaps the products of these.
inline constexpr int64_t kStepTiles = 2;
// Bytes ahead of the loads of a row; the end of a row leads into the rows of the next group.
inline constexpr int64_t kTilePrefetch = 512;

// The lines that the step at byte `at` of G panels will want, once per line.
template <class F, int G>
KDELTA_INLINE void prefetch_step(const Matrix& w, int64_t n, int64_t k) {
  constexpr int64_t kBytes = kStepTiles * 64 / F::kPairs;
  const int64_t at = k * 2 / F::kPairs, row_end = w.cols * 2 / F::kPairs;
  if (at % 64 >= kBytes) return;
  const int64_t ahead =
      at + kTilePrefetch < row_end ? at + kTilePrefetch : at + kTilePrefetch - row_end + G * 16 * w.row_bytes;
  const char* row = reinterpret_cast<const char*>(w.row(n)) + ahead;
  for (int64_t r = 0; r < G * 16; ++r, row += w.row_bytes)
    for (int64_t line = 0; line < kBytes; line += 64) _mm_prefetch(row + line, _MM_HINT_T0);
}

// Rounds over G panels of weights and one block of at most 16 tokens whose products stay in tile registers.
template <class Tiles, int G>
KDELTA_INLINE void multiply_step(const PanelTiles* a, const uint8_t* tokens, int64_t columns, int64_t tiles) {
  for (int64_t i = 0; i < tiles; ++i) {
    Tiles::template load<6>(tokens + i * 64 * columns, 4 * columns);
    Tiles::template load<4>(a[0].data + i * a[0].step, a[0].stride);
    Tiles::template multiply<0, 4, 6>();
    if constexpr (G >= 2) {
      Tiles::template load<5>(a[1].data + i * a[1].step, a[1].stride);
      Tiles::template multiply<1, 5, 6>();
    }
    if constexpr (G == 4) {
      Tiles::template load<4>(a[2].data + i * a[2].step, a[2].stride);
      Tiles::template multiply<2, 4, 6>();
      Tiles::template load<5>(a[3].data + i * a[3].step, a[3].stride);
      Tiles::template multiply<3, 5, 6>();
    }
  }
}

template <class Tiles, int G>
KDELTA_INLINE void zero_products() {
  Tiles::template zero<0>();
  if constexpr (G >= 2) Tiles::template zero<1>();
  if constexpr (G == 4) Tiles::template zero<2>(), Tiles::template zero<3>();
}

template <class Tiles, int G>
KDELTA_INLINE void keep_products(float* products) {
  Tiles::template store<0>(products, 64);
  if constexpr (G >= 2) Tiles::template store<1>(products + kTileFloats, 64);
  if constexpr (G == 4) {
    Tiles::template store<2>(products + 2 * kTileFloats, 64);
    Tiles::template store<3>(products + 3 * kTileFloats, 64);
  }
}

// G panels at row n, at most 16 tokens: the weights pass once, bf16 rows straight from the file.
template <class Tiles, class F, int G, class Out>
void few_tokens(const Projection& p, const PackedTokens& x, int64_t n, const TileScratch& s) {
  const Matrix& w = p.w;
  const bool whole = !F::kScaled && n + 16 * G <= w.rows;
  __mmask16 outside[G] = {};
  PanelTiles a[G];
  zero_products<Tiles, G>();
  for (int64_t k = 0; k < w.cols; k += 32 * kStepTiles) {
    const int64_t left = tile_columns(w.cols - k), tiles = left < kStepTiles ? left : kStepTiles;
    const bool from_file = whole && k + 32 * tiles <= w.cols;
    prefetch_step<F, G>(w, n, k);
    for (int64_t g = 0; g < G; ++g) {
      const int64_t first = n + 16 * g;
      __m512i* drops = s.drops + 16 * g;
      if (k % kScaleSpan == 0) outside[g] |= panel_drops<F>(w, first, k, 16 * G, drops);
      a[g] = from_file ? PanelTiles{w.row(first) + 2 * k, w.row_bytes, 64}
                       : filled_tiles<F>(w, first, k, tiles, drops, s.weights + g * kStepTiles * kTileBytes);
    }
    multiply_step<Tiles, G>(a, x.tile(0, k / 32, w.cols), x.columns, tiles);
  }
  keep_products<Tiles, G>(s.products);
  for (int64_t g = 0; g < G; ++g) finish_panel<Out>(p, x, n + 16 * g, g, outside[g], s);
}

// Products of one tile wait for each other (52 cycles), so MX weights, whose bytes buy more of them, take four panels
// at once; bf16 rows are 32 streams from memory as it is.
template <class Tiles, class F, class Out>
KDELTA_INLINE int64_t few_tokens_group(const Projection& p, const PackedTokens& x, int64_t n, int64_t panels,
                                       const TileScratch& s) {
  if constexpr (F::kScaled)
    if (panels >= 4) return few_tokens<Tiles, F, 4, Out>(p, x, n, s), 4;
  if (panels >= 2) return few_tokens<Tiles, F, 2, Out>(p, x, n, s), 2;
  return few_tokens<Tiles, F, 1, Out>(p, x, n, s), 1;
}

// For cpu/packed.h, on any Tiles with the members of AmxTiles: a test runs it on emulated ones.
template <class Tiles>
struct TileKernel {
  using Sizes = TileSizes;

  static KDELTA_INLINE void pack(const Projection& p, int64_t begin, int64_t end, void* packed) {
    auto* at = static_cast<uint8_t*>(packed);
    const PackedTokens x = packed_tokens(p, at);
    for (int64_t b = begin / kTokenBlock; b * kTokenBlock < end; ++b)
      pack_token_block(p, b, x.columns, at + b * tile_columns(p.w.cols) * 64 * x.columns);
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
            i += few_tokens_group<Tiles, F, Out>(p, x, i * kPanelRows, panels, s);
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
