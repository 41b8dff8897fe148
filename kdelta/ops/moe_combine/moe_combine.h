// Weighted sum of the chosen experts' outputs:  out[t] = sum_i weight[t, i] * y[position[t, i]]  (+ addend[t])
// Summed in the order i = 0..k-1 in fp32, rounded once. Letters: T tokens, k choices, P pairs in expert order, D width.
// position -1 (a row that is not live) contributes nothing: such rows are zeros (plus nothing: addend is not read).
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

void moe_combine(const Exec& ex, const MoeCombineArgs& args);

Cost moe_combine_cost(const MoeCombineArgs& args);

}  // namespace kdelta
