// Sizes of the scratch of dot_bf16.h, for entries that are compiled without its instructions.
#pragma once

#include "kdelta/core/dtype.h"

namespace kdelta {

// Words: 512 vectors (32 KB, two thirds of L1) hold 2 panels x 512 columns. Tokens per pass: 256, whose accumulators
// for 8 panels (128 KB) and columns (256 KB) stay in L2.
inline constexpr int64_t kPackVectors = 512, kPackTokens = 256, kPackPanels = 8;

// Bytes of one thread: packed words, scale drops, accumulators, one dequantised row.
KDELTA_INLINE int64_t pack_scratch_bytes(int64_t K) {
  return (kPackVectors + kPackPanels * 16 + kPackTokens * kPackPanels) * 64 + (K * 4 + 63) / 64 * 64;
}

}  // namespace kdelta
