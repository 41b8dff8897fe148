// Weighted sum of the chosen experts' outputs:  out[t] = sum_i weight[t, i] * y[position[t, i]]  (+ addend[t])
// Summed in the order i = 0..k-1, then the addend, in fp32, rounded once. Letters: T tokens, k choices, P pairs in
// expert order, D width. position -1 contributes nothing. A row of nothing but -1 is not live: zeros, its addend is not
// read.
#pragma once

#include "kdelta/core/exec.h"

namespace kdelta {

struct MoeCombineArgs {
  AnyConstView y;                // [P, D] f32 or bf16, row stride free
  View<const int32_t> position;  // [T, k]
  View<const float> weight;      // [T, k]
  AnyConstView addend;           // null, or [T, D] f32 or bf16 (the shared experts' output); may be out itself
  AnyView out;                   // [T, D] f32 or bf16
};

// Throws Error(invalid_argument) naming the argument; on the CPU also for a position outside -1..P-1, before anything
// is written.
void moe_combine(const Exec& ex, const MoeCombineArgs& args);

Cost moe_combine_cost(const MoeCombineArgs& args);

}  // namespace kdelta
