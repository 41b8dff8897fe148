// Sizes of the scratch of dot_bf16.h, for entries that are compiled without its instructions.
#pragma once

#include "kdelta/core/dtype.h"

namespace kdelta {

// Columns that are summed lane by lane before the lanes are added up. Part of the order of every sum: fixed.
inline constexpr int64_t kSegment = 1024;

// The rest only says what stays where. A tile is 6 tokens x 4 rows; 264 tokens are a pass, of which one segment (528
// KB) stays in L2; 8 rows of unpacked weights (16 KB) stay in L1; 16 panels of sums (264 KB) wait for their next
// segment.
inline constexpr int64_t kTokenTile = 6, kPackTokens = 44 * kTokenTile, kPackPanels = 16, kUnpackRows = 8;

// Columns of a packed token: whole steps of every format.
KDELTA_INLINE int64_t packed_columns(int64_t K) {
  return (K + 127) / 128 * 128;
}

// Tokens of a pass for T of them: as many passes as there must be, all but the last of one size in whole tiles.
KDELTA_INLINE int64_t pass_tokens(int64_t T) {
  const int64_t passes = (T + kPackTokens - 1) / kPackTokens;
  if (passes <= 1) return T < 1 ? 1 : T;
  return ((T + passes - 1) / passes + kTokenTile - 1) / kTokenTile * kTokenTile;
}

// Columns after which a pass over `tokens` goes on to the next panel: few tokens take all of a row, many one segment.
KDELTA_INLINE int64_t pass_columns(int64_t tokens, int64_t K) {
  const int64_t fit = kPackTokens / tokens * kSegment;
  return packed_columns(K) < fit ? packed_columns(K) : fit;
}

struct PackBytes {
  int64_t words, sums, exact_row;
  KDELTA_INLINE int64_t total() const { return words + sums + exact_row; }
};

// What one thread needs for projections of at most T tokens.
KDELTA_INLINE PackBytes pack_bytes(int64_t T, int64_t K) {
  const int64_t tokens = T < kPackTokens ? T : kPackTokens, tiles = (tokens + kTokenTile - 1) / kTokenTile;
  return {kUnpackRows * kSegment * 2, kPackPanels * tiles * 4 * (4 * kTokenTile) * 4, (K * 4 + 63) / 64 * 64};
}

// For cpu/packed.h.
struct PackSizes {
  static constexpr int64_t kTokens = 4 * kPackTokens, kUnit = 1;
  static KDELTA_INLINE int64_t packed(int64_t tokens, int64_t K) { return tokens * packed_columns(K) * 2; }
  static KDELTA_INLINE int64_t packed_at_most(int64_t tokens, int64_t K) { return packed(tokens, K); }
  static KDELTA_INLINE int64_t thread(int64_t T, int64_t K) { return pack_bytes(T, K).total(); }
};

}  // namespace kdelta
