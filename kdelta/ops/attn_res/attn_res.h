// Block attention residual: per token a softmax mixture of the committed block outputs and the running sum. Streams
// v_0..v_{n-1} are the first n blocks, v_n is the running sum:
// (with an addend: the running sum plus the addend, rounded to its dtype, which sum_out receives)
//   score_i = (v_i . score_weight) / sqrt(mean(v_i^2) + eps);  p = softmax(score);  mix = sum_i p_i v_i   (raw v, fp32)
// and, when norm_weight is given, out = rms_norm(mix rounded to out's dtype; norm_weight, norm_eps), else out = mix.
// Letters: T tokens, B block capacity, D width. Source: Attention Residuals (arXiv 2603.15031), as in Kimi K3.
#pragma once

#include "kdelta/core/exec.h"

namespace kdelta {

struct AttnResArgs {
  AnyConstView blocks;             // [B, T, D] f32 or bf16; block and token strides free; may be null when n = 0
  int64_t n = 0;                   // valid blocks, 0..B; the others are never read
  AnyConstView sum;                // [T, D] running sum, same dtype
  AnyConstView addend;             // [T, D] same dtype, or null: what a sublayer adds to the running sum
  AnyView sum_out;                 // [T, D] same dtype, where there is an addend: the new sum; may be `sum` itself
  View<const float> score_weight;  // [D] norm weight times projection row, multiplied at load
  float eps = 0;
  View<const float> norm_weight;  // [D] or null: no norm after the mixture
  float norm_eps = 0;
  AnyView out;  // [T, D] same dtype; may not overlap an input or sum_out
};

// n = 0 gives mix = sum exactly, and with an addend mix = sum_out. n > B is refused ("stream capacity"). T = 0 is
// legal. Throws Error(invalid_argument).
void attn_res(const Exec& ex, const AttnResArgs& args);

Cost attn_res_cost(const AttnResArgs& args);

}  // namespace kdelta
