// How linear's Hopper product is cut: host code of every build, so that it is tested without a device.
#pragma once

#include <cstdint>

#include "kdelta/core/dtype.h"

namespace kdelta {

struct GemmPlan {
  int tokens = 256;  // of a tile: 32, 64, 128 or 256
  int splits = 1;    // parts of the columns, each a tile of its own; their sums are added by a second kernel
};

// Up to here a product is as quick as its weights are read, and cuda_mma reads them best. Codes are smaller than the
// tokens that go with them: beyond eight, those are what it would wait for.
constexpr int64_t most_skinny_tokens(DType weights) {
  return weights == DType::bf16 ? 16 : 8;
}

// The same of cuda_fp8.
inline constexpr int64_t kMostCodesTokens = 16;

inline constexpr int64_t kGemmTileRows = 128, kGemmStepColumns = 64;

// T tokens against row_tiles tiles of weight rows, `steps` steps of columns each. More than one split only where all
// tiles run at once.
GemmPlan gemm_plan(int64_t T, int64_t row_tiles, int64_t steps, int multiprocessors);
// The same for cuda_fp8: tiles of 64 or 128 tokens, `steps` of 128 columns.
GemmPlan fp8_plan(int64_t T, int64_t row_tiles, int64_t steps, int multiprocessors);
// Enough for the sums of every plan with splits.
int64_t gemm_scratch_bytes(int multiprocessors);

// Scratch of cuda_fp8: sums of split columns, then codes of x, then its scales as the product reads them.
struct Fp8Scratch {
  int64_t codes, records, bytes;
};
Fp8Scratch fp8_scratch(int64_t T, int64_t K, int multiprocessors);

}  // namespace kdelta
