// Activations in fp32. kExact: to a few ulp, for fp32 outputs; otherwise with the hardware's exponential, good to
// 2^-14, which bf16 outputs do not see.
#pragma once

#include <cuda_runtime.h>

namespace kdelta::cuda {

template <bool kExact>
__device__ __forceinline__ float exponential(float x) {
  return kExact ? expf(x) : __expf(x);
}
template <bool kExact>
__device__ __forceinline__ float quotient(float a, float b) {
  return kExact ? a / b : __fdividef(a, b);
}
// 0 at -inf, 1 at inf.
template <bool kExact>
__device__ __forceinline__ float sigmoid(float x) {
  if constexpr (kExact) return 1 / (1 + expf(-x));
  return __fdividef(1.0f, 1 + __expf(-x));  // 0 where the exponential overflows
}

// Odd, 1 at inf. The fast form is a Taylor sum up to |x| = 0.35, so that small arguments keep their relative precision.
template <bool kExact>
__device__ __forceinline__ float hyperbolic_tangent(float x) {
  if constexpr (kExact) return tanhf(x);
  const float y = x * x;
  const float small = x * fmaf(y, fmaf(y, fmaf(y, -17.0f / 315, 2.0f / 15), -1.0f / 3), 1.0f);
  const float large = 1 - __fdividef(2.0f, 1 + __expf(fminf(2 * x, 80.0f)));
  return fabsf(x) < 0.35f ? small : large;
}

}  // namespace kdelta::cuda
