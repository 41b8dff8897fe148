// Sizes of the scratch of dot_amx.h, for entries that are compiled without its instructions.
#pragma once

#include "kdelta/core/dtype.h"

namespace kdelta {

// Two panels x 256 columns (16 KB) stay in L1 while all tokens pass (16 KB per 32 of them, from L2), 8 panels make a
// block. Tokens are taken 1,024 at a time, whose products for 8 panels (512 KB) and columns (512 KB) rest in L2.
inline constexpr int64_t kTilePanels = 8, kTileColumns = 256, kTileTokens = 1024;
inline constexpr int64_t kTileBytes = 1024;

// Columns rounded up to whole tiles of 32.
KDELTA_INLINE int64_t tile_columns(int64_t K) {
  return (K + 31) / 32;
}

// Bytes of `count` tokens packed as tiles: up to 16 tokens make one narrow block, more make blocks of 16.
KDELTA_INLINE int64_t packed_token_bytes(int64_t count, int64_t K) {
  return tile_columns(K) * 64 * (count <= 16 ? count : (count + 15) / 16 * 16);
}

// Bytes of one thread: weight tiles, product tiles, scale drops, one dequantised row.
KDELTA_INLINE int64_t tile_scratch_bytes(int64_t K) {
  return kTileBytes * kTilePanels * (kTileColumns / 32 + kTileTokens / 16) + kTilePanels * 16 * 64 +
         (K * 4 + 63) / 64 * 64;
}

}  // namespace kdelta
