// What the CUDA kernels hold, for the host code that refuses more.
#pragma once

#include <cstdint>

namespace kdelta::cuda {

inline constexpr int64_t kMaxRowWidth = 16384;  // of a row in the registers of a block (row.cuh)

}  // namespace kdelta::cuda
