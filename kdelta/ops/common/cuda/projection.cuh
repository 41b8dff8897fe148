// A weight matrix and the outputs of its projection as kernels of linear and grouped_linear take them.
#pragma once

#include "kdelta/core/matrix.h"
#include "kdelta/ops/common/cuda/mx_codes.cuh"

namespace kdelta::cuda {

struct WeightRows {
  const uint8_t* data;
  const uint8_t* scale;  // MX formats
  int64_t row_bytes, scale_row_bytes, rows;
};
inline WeightRows weight_rows(const Matrix& m) {
  return {static_cast<const uint8_t*>(m.data), m.scale, m.row_bytes, m.scale_row_bytes, m.rows};
}

// out [T, N], f32 or bf16, with an addend of the same type or none.
struct ProjectionOut {
  void* data;
  const void* addend;
  int64_t stride, addend_stride;  // elements
  bool bf16;

  __device__ __forceinline__ void put(int64_t t, int64_t n, float value) const {
    if (bf16) {
      if (addend != nullptr) value += to_f32(static_cast<const kdelta::bf16*>(addend)[t * addend_stride + n]);
      static_cast<kdelta::bf16*>(data)[t * stride + n] = from_f32<kdelta::bf16>(value);
    } else {
      if (addend != nullptr) value += static_cast<const float*>(addend)[t * addend_stride + n];
      static_cast<float*>(data)[t * stride + n] = value;
    }
  }
};
inline ProjectionOut projection_out(const AnyView& out, const AnyConstView& addend) {
  return {out.data, addend.data, out.stride[0], addend.null() ? 0 : addend.stride[0], out.dtype == DType::bf16};
}

// Element k of a row, in fp32, exact for every format.
template <DType kFormat>
__device__ __forceinline__ float weight_at(const WeightRows& w, int64_t row, int64_t k) {
  const uint8_t* p = w.data + row * w.row_bytes;
  if constexpr (kFormat == DType::f32) {
    return reinterpret_cast<const float*>(p)[k];
  } else if constexpr (kFormat == DType::bf16) {
    return to_f32(reinterpret_cast<const bf16*>(p)[k]);
  } else {
    const uint8_t s = w.scale[row * w.scale_row_bytes + k / kMxBlock];
    const uint32_t code = kFormat == DType::f4_e2m1 ? uint32_t{p[k / 2]} >> (k % 2 * 4) & 15 : uint32_t{p[k]};
    return value_of<kFormat>(code) * (s == 255 ? NAN : power_of_two(s - 127));
  }
}

// f(the format as an integral constant).
template <class F>
void dispatch_weights(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f32:
      return f(std::integral_constant<DType, DType::f32>{});
    case DType::bf16:
      return f(std::integral_constant<DType, DType::bf16>{});
    default:
      dispatch_format(dtype, f);
  }
}

}  // namespace kdelta::cuda
