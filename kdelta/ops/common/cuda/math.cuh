// Activations in fp32. kExact: to a few ulp, for fp32 outputs; otherwise with the hardware's exponential, good to
// 2^-14, which bf16 outputs do not see.
#pragma once

#include <cuda_runtime.h>

#include <type_traits>

#include "kdelta/core/check.h"
#include "kdelta/ops/common/activation_kind.h"

namespace kdelta::cuda {

// The hardware's, good to 2^-22; denormal numbers are zeros.
__device__ __forceinline__ float exp2_fast(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
__device__ __forceinline__ float log2_fast(float x) {
  float r;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
__device__ __forceinline__ float reciprocal_fast(float x) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

// 0 at -inf, 1 at inf.
template <bool kExact>
__device__ __forceinline__ float sigmoid(float x) {
  if constexpr (kExact) return 1 / (1 + expf(-x));
  return __fdividef(1.0f, 1 + __expf(-x));  // 0 where the exponential overflows
}
// Three instructions where sigmoid<false> takes ten, most of them for denormal numbers, which flush to zero here.
__device__ __forceinline__ float sigmoid_flushed(float x) {
  return reciprocal_fast(1 + exp2_fast(-1.4426950408889634f * x));  // 0 where the exponential overflows
}

// tanh(x) as over / under: two tangents share one reciprocal, and the units that make exponentials and reciprocals are
// what limits SiTU. Saturates at |x| = 10, where tanh is 1 in fp32. Small arguments keep their relative precision by a
// Taylor sum.
struct Fraction {
  float over, under;
};
__device__ __forceinline__ Fraction fast_tangent(float x) {
  const float e = __expf(2 * fminf(fmaxf(x, -10.0f), 10.0f)), y = x * x;
  const float taylor = x * fmaf(y, fmaf(y, fmaf(y, -17.0f / 315, 2.0f / 15), -1.0f / 3), 1.0f);
  return {fabsf(x) < 0.35f ? taylor * (e + 1) : isnan(x) ? x : e - 1, e + 1};
}

// SiTU of kdelta/ops/activation/activation.h; linear_beta 0: up is used as it is. The fast form is good to a few ulp.
template <bool kExact>
__device__ __forceinline__ float situ(float gate, float up, float beta, float linear_beta) {
  if constexpr (kExact) {
    const float linear = linear_beta > 0 ? linear_beta * tanhf(up / linear_beta) : up;
    return beta * tanhf(gate / beta) * sigmoid<true>(gate) * linear;
  } else {
    const Fraction g = fast_tangent(gate * (1 / beta));
    const Fraction u = linear_beta > 0 ? fast_tangent(up * (1 / linear_beta)) : Fraction{up, 1};
    const float size = linear_beta > 0 ? beta * linear_beta : beta;
    return size * __fdividef(g.over * u.over, g.under * u.under) * sigmoid<false>(gate);
  }
}

// The equations of kdelta/ops/activation/activation.h.
template <ActivationKind kKind, bool kExact>
__device__ __forceinline__ float activate(float gate, float up, float beta, float linear_beta) {
  if constexpr (kKind == ActivationKind::swiglu) {
    return gate * sigmoid<kExact>(gate) * up;
  } else if constexpr (kKind == ActivationKind::sigmoid_gate) {
    return sigmoid<kExact>(gate) * up;
  } else {
    return situ<kExact>(gate, up, beta, linear_beta);
  }
}

// f(the kind as an integral constant).
template <class F>
void dispatch_activation_kind(ActivationKind kind, F&& f) {
  using enum ActivationKind;
  switch (kind) {
    case swiglu:
      return f(std::integral_constant<ActivationKind, swiglu>{});
    case situ:
      return f(std::integral_constant<ActivationKind, situ>{});
    case sigmoid_gate:
      return f(std::integral_constant<ActivationKind, sigmoid_gate>{});
  }
  KDELTA_UNREACHABLE("activation kind", kind);
}

}  // namespace kdelta::cuda
