// Rows of a matrix as Hopper's tensor copies take them: boxes of columns x rows, zeros where a box leaves the matrix.
#pragma once

#include <cuda.h>

#include "kdelta/core/cuda/runtime.h"
#include "kdelta/ops/common/cuda/async.cuh"

namespace kdelta::cuda {

// A box row is box_bytes long and a swizzle's span wide: 32, 64 or 128. data and row_bytes are multiples of 16.
inline CUtensorMap tensor_map(Device device, const void* data, bool bf16, int64_t row_columns, int64_t rows,
                              int64_t row_bytes, int box_bytes, int box_rows) {
  using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                              const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                              CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
  static const Encode encode = [&] {
    void* found = nullptr;
    cuda_check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, nullptr),
               device, "cuTensorMapEncodeTiled");
    return reinterpret_cast<Encode>(found);
  }();
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(row_columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(row_bytes)};
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(bf16 ? box_bytes / 2 : box_bytes),
                             static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[2] = {1, 1};
  const auto swizzle = box_bytes == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                       : box_bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                         : CU_TENSOR_MAP_SWIZZLE_32B;
  CUtensorMap map;
  const CUresult status =
      encode == nullptr ? CUDA_ERROR_NOT_FOUND
                        : encode(&map, bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_UINT8, 2,
                                 const_cast<void*>(data), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                 swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS)
    fail(ErrorCode::failed, to_string(device), ": the driver makes no tensor map of ", rows, " rows of ", row_columns,
         " columns, ", row_bytes, " bytes apart (status ", static_cast<int>(status), ")");
  return map;
}

// The box that begins at `column` and `row` into shared memory (a multiple of 1,024); completes on the barrier.
__device__ __forceinline__ void tensor_load(void* to_shared, const CUtensorMap& map, int column, int row,
                                            uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::
          "r"(shared_address(to_shared)),
      "l"(&map), "r"(column), "r"(row), "r"(shared_address(barrier))
      : "memory");
}

}  // namespace kdelta::cuda
