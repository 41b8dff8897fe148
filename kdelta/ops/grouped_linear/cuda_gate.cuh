// The activation of gate and up projections in one pass.
#pragma once

#include "kdelta/ops/common/cuda/device.cuh"
#include "kdelta/ops/common/cuda/math.cuh"
#include "kdelta/ops/grouped_linear/grouped_linear.h"

namespace kdelta::grouped {

enum class Gate : uint8_t { none, swiglu, situ, sigmoid_gate };

// Both are rounded first, as outputs of their own would be.
template <Gate kGate>
__device__ __forceinline__ float gate_of(float gate, float up, float beta, float linear_beta) {
  constexpr auto kKind = kGate == Gate::situ           ? ActivationKind::situ
                         : kGate == Gate::sigmoid_gate ? ActivationKind::sigmoid_gate
                                                       : ActivationKind::swiglu;
  const auto rounded = [](float x) { return cuda::to_f32(cuda::from_f32<bf16>(x)); };
  return cuda::activate<kKind, false>(rounded(gate), rounded(up), beta, linear_beta);
}

template <class F>
void dispatch_gate(const GroupedLinearArgs& a, F&& f) {
  if (a.up_w.empty()) return f(std::integral_constant<Gate, Gate::none>{});
  switch (a.activation) {
    case ActivationKind::swiglu:
      return f(std::integral_constant<Gate, Gate::swiglu>{});
    case ActivationKind::situ:
      return f(std::integral_constant<Gate, Gate::situ>{});
    case ActivationKind::sigmoid_gate:
      return f(std::integral_constant<Gate, Gate::sigmoid_gate>{});
  }
  KDELTA_UNREACHABLE("activation kind", a.activation);
}

}  // namespace kdelta::grouped
