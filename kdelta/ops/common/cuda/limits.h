// What the CUDA kernels hold, for the host code that refuses more.
#pragma once

#include <cstdint>

#include "kdelta/core/dtype.h"

namespace kdelta::cuda {

inline constexpr int64_t kMaxRowWidth = 16384;  // of a row in the registers of a block (row.cuh)

// Products on tensor cores (skinny.cuh): columns that a step covers, so K is a multiple; and the most columns.
constexpr int64_t mma_columns(DType weights) {
  return weights == DType::bf16 ? 32 : weights == DType::f4_e2m1 ? 128 : 64;
}
inline constexpr int64_t kMostMmaColumns = 32768;

}  // namespace kdelta::cuda
