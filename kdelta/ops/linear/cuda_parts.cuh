// The matrices of one call as a kernel takes them, and which of them a tile of weight rows belongs to.
#pragma once

#include "kdelta/ops/common/cuda/projection.cuh"
#include "kdelta/ops/common/cuda/views.cuh"
#include "kdelta/ops/linear/variants.h"

namespace kdelta {

struct Parts {
  cuda::WeightRows w[kMaxLinearParts];
  cuda::ProjectionOut out[kMaxLinearParts];
  cuda::Rows<const bf16> x[kMaxLinearParts];  // for kernels that take bf16
  int first_tile[kMaxLinearParts + 1];        // of every part; behind the last the number of tiles

  __host__ __device__ int tiles() const { return first_tile[kMaxLinearParts]; }
  __device__ __forceinline__ int of_tile(int tile) const {
    int p = 0;
#pragma unroll
    for (int i = 1; i < kMaxLinearParts; ++i) p += tile >= first_tile[i] ? 1 : 0;
    return p;
  }
};

inline Parts linear_parts(const LinearArgs& a, int64_t tile_rows) {
  Parts parts{};
  int count = 0, tiles = 0;
  const auto add = [&](const Matrix& w, const AnyView& out, const AnyConstView& addend, const AnyConstView& x) {
    if (w.rows == 0) return;
    if (x.dtype == DType::bf16) parts.x[count] = cuda::rows<const bf16>(x);
    parts.w[count] = cuda::weight_rows(w);
    parts.out[count] = cuda::projection_out(out, addend);
    parts.first_tile[count++] = tiles;
    tiles += static_cast<int>((w.rows + tile_rows - 1) / tile_rows);
  };
  add(a.w, a.out, a.addend, a.x);
  for (const LinearPart& p : a.more) add(p.w, p.out, {}, p.x.null() ? a.x : p.x);
  for (int i = count; i <= kMaxLinearParts; ++i) parts.first_tile[i] = tiles;
  return parts;
}

}  // namespace kdelta
