// Gated RMS norm per head:  s = x (+ residual);  out = s / sqrt(mean_d(s^2) + eps) * weight (+ bias) * act(gate)
// Letters: T tokens, H heads, D head width. act is sigmoid (Kimi) or SiLU. All fp32, rounded once. x is never written
// unless out is x.
#pragma once

#include "kdelta/core/exec.h"

namespace kdelta {

enum class GateActivation : uint8_t { sigmoid, silu };

struct GatedNormArgs {
  AnyConstView x;            // [T, H, D] f32 or bf16; token and head strides free
  AnyConstView gate;         // [T, H, D] raw, f32 or bf16; token and head strides free (a view of a packed projection)
  View<const float> weight;  // [D] or null: no weight
  View<const float> bias;    // [D] or null
  AnyConstView residual;     // [T, H, D] f32 or bf16, or null: added to x first, in fp32
  AnyView sum_out;           // [T, H, D] f32 or bf16, or null: receives x + residual (prenorm); overlaps nothing else
  GateActivation activation = GateActivation::sigmoid;  // at -inf sigmoid is 0, SiLU NaN (-inf * 0)
  float eps = 0;                                        // from the checkpoint
  View<const int32_t> live;  // [1] or null: rows t >= live[0] of out and sum_out are zeros, whatever the inputs hold
  AnyView out;               // [T, H, D] f32 or bf16; may be x itself, may not overlap an input otherwise
};

// T = 0 is legal. f16 is refused by dtype. Throws Error(invalid_argument) naming the argument, for overlaps too.
void gated_norm(const Exec& ex, const GatedNormArgs& args);

Cost gated_norm_cost(const GatedNormArgs& args);

}  // namespace kdelta
