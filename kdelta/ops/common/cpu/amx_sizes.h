// Sizes of the scratch of dot_amx.h, for entries that are compiled without its instructions.
#pragma once

#include "kdelta/core/dtype.h"

namespace kdelta {

// Two panels x 512 columns (32 KB) stay in L1 while the tokens of a pass go by (32 KB per 32 of them, from L2); 8
// panels make a block. 512 tokens are a pass: their 512 columns (512 KB) and products for 8 panels (256 KB) rest in L2.
// The team packs two passes at a time.
inline constexpr int64_t kTilePanels = 8, kTileColumns = 512, kTilePass = 512, kTileTokens = 1024;
inline constexpr int64_t kTileBytes = 1024;

// Columns rounded up to whole tiles of 32.
KDELTA_INLINE int64_t tile_columns(int64_t K) {
  return (K + 31) / 32;
}

// Bytes of one thread: weight tiles, product tiles, scale drops, one dequantised row.
KDELTA_INLINE int64_t tile_scratch_bytes(int64_t K) {
  return kTileBytes * kTilePanels * (kTileColumns / 32 + kTilePass / 16) + kTilePanels * 16 * 64 +
         (K * 4 + 63) / 64 * 64;
}

// For cpu/packed.h. Up to 16 tokens make one narrow block, more make blocks of 16: 17 take two.
struct TileSizes {
  static constexpr int64_t kTokens = kTileTokens, kUnit = 16;
  static KDELTA_INLINE int64_t packed(int64_t tokens, int64_t K) {
    return tile_columns(K) * 64 * (tokens <= 16 ? tokens : (tokens + 15) / 16 * 16);
  }
  static KDELTA_INLINE int64_t packed_at_most(int64_t tokens, int64_t K) { return 2 * tokens * tile_columns(K) * 64; }
  static KDELTA_INLINE int64_t thread(int64_t, int64_t K) { return tile_scratch_bytes(K); }
};

}  // namespace kdelta
