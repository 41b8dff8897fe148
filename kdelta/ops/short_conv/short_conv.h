// Causal depthwise convolution with a carried window, SiLU fused:
//   y[t, c] = sum_j weight[j, c] * xh[t - (W-1) + j, c];  out = silu(y) (or y)      xh = history rows, then the
//   sequence's rows
// Letters: T tokens, N sequences, C channels (q|k|v merged: 3 P), W taps (tap W-1 multiplies the current token). fp32
// accumulation. The window is the last raw inputs of a sequence, one slot of R >= W-1 + columns-1 rows: history is rows
// accepted-1 .. accepted-1+W-2 (zeros when fresh). Afterwards prefill stores its last W-1 inputs in rows 0..W-2; a
// decode row of len tokens stores the last W-2 history rows, then its len inputs, so that next time any number of them
// can have been accepted.
#pragma once

#include <array>

#include "kdelta/core/exec.h"
#include "kdelta/ops/common/sequences.h"

namespace kdelta {

enum class ConvActivation : uint8_t { none, silu };

struct ShortConvArgs {
  AnyConstView x;            // [T, C] f32 or bf16, row stride free
  View<const float> weight;  // [W, C], W in 2..4, packed once at load from the checkpoint's [C, 1, W]
  ConvActivation activation = ConvActivation::silu;
  Sequences seq;
  AnyView state;                 // [slots, R, C] in x's dtype, slot stride free, rows dense; updated in place
  AnyView out;                   // [T, C] in x's dtype, row stride free: merged output; or null when split is used
  std::array<AnyView, 3> split;  // [T, C/3] each: q, k, v apart, bit-equal to the merged form; or all null
};

// The same rules as kda() for uncovered rows (zeros), slot -1, slot 0, length 0, faults and snapshots (the window after
// the first i tokens). Only column 0 of the slots is used; the other columns may hold numbers that this pool does not
// have. out and split may not overlap x, the state or each other. Throws Error(invalid_argument) naming the argument,
// before anything is written.
void short_conv(const Exec& ex, const ShortConvArgs& args);

Cost short_conv_cost(const ShortConvArgs& args);

}  // namespace kdelta
