// Accumulators of a quantised gate|up projection to the int8 input of the next one:
//   v[t, c] = x[t, c] * weight_scale[c] * activation_scale[t] + bias[c]   (bf16 x: v = x), each operation in fp32
//   z[t, n] = situ(gate, up) of the halves of v (kdelta/ops/activation/activation.h), fp32
//   dynamic  scale[t] = max_n |z[t, n]| / 127, y = round(z / scale[t]); a row of zeros has scale 1
//   fixed    y = round(z / quant_scale + quant_offset), saturating to -128..127; NaN gives 0
// Rounding is to nearest, ties to even. Letters: T tokens, N outputs, E experts. A dynamic row whose largest magnitude
// is NaN or infinite has that as its scale and codes 0, and harms no other row.
//
//   x     weight_scale        activation_scale  bias                 modes           group_counts
//   i8    [2N] or [1]         none              as weight_scale      dynamic, fixed  none
//   i32   [2N] or [E, 2N]     [T] or [T, 1]     as weight_scale      dynamic         [E], needed by [E, 2N]
//   bf16  none                none              none                 dynamic         [E]
// bias and group_counts may always be left out but for the last; rows behind the counts: group_counts.h.
#pragma once

#include "kdelta/core/exec.h"

namespace kdelta {

struct DequantSituArgs {
  AnyConstView x;                    // [T, 2N] i8, i32 or bf16, row stride free
  float beta = 4, linear_beta = 25;  // beta > 0; linear_beta >= 0, 0: up is used as it is
  bool activate_left = true;         // gate is the left half of the columns
  View<const float> weight_scale, activation_scale, bias;
  bool dynamic = true;
  View<const float> quant_scale, quant_offset;  // fixed mode: [N] or [1]; quant_offset may be left out
  View<const int64_t> group_counts;
  View<int8_t> y;     // [T, N], row stride free
  View<float> scale;  // [T]; fixed mode: none
};

// T = 0 and N = 0 are legal. Throws Error(invalid_argument) naming the argument, what was given and what is accepted.
void dequant_situ(const Exec& ex, const DequantSituArgs& args);
Cost dequant_situ_cost(const DequantSituArgs& args);

}  // namespace kdelta
