// Two-branch activations, elementwise, fp32 inside, rounded once:
//   swiglu        gate * sigmoid(gate) * up
//   situ          beta * tanh(gate/beta) * sigmoid(gate) * (linear_beta > 0 ? linear_beta * tanh(up/linear_beta) : up)
//   sigmoid_gate  sigmoid(gate) * up                                                (the MLA output gate)
// Source: Kimi K3 report for SiTU (|situ| <= beta * linear_beta).
#pragma once

#include "kdelta/core/exec.h"
#include "kdelta/ops/common/activation_kind.h"

namespace kdelta {

struct ActivationArgs {
  ActivationKind kind = ActivationKind::swiglu;
  float beta = 1, linear_beta = 0;  // situ only; beta > 0
  AnyConstView gate, up;            // [T, N] f32 or bf16, row stride free
  AnyView out;  // [T, N] f32 or bf16, row stride free; may be gate or up itself (same dtype and stride)
};

// T = 0 and N = 0 are legal. NaN stays in its element. Throws Error(invalid_argument) naming the argument.
void activation(const Exec& ex, const ActivationArgs& args);

Cost activation_cost(const ActivationArgs& args);

}  // namespace kdelta
