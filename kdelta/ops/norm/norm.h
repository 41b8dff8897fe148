// RMS norm of each row:  out[t, d] = weight[d] * x[t, d] / sqrt(mean_d(x[t, d]^2) + eps)
// Letters: T tokens, D width. Source: Zhang and Sennrich 2019, as the Kimi models use it before every sublayer, on the
// latents of MLA and on the summed expert output. Statistics and the product are fp32, rounded once to out's dtype.
#pragma once

#include "kdelta/core/exec.h"

namespace kdelta {

struct NormArgs {
  AnyConstView x;            // [T, D] f32 or bf16; row stride free, last axis dense
  View<const float> weight;  // [D]
  AnyView out;               // [T, D] f32 or bf16, row stride free; may be x itself, may not overlap it otherwise
  float eps = 0;             // >= 0, added to the mean square inside the root
};

Cost norm_cost(const NormArgs& args);

// T = 0 is legal. A row of zeros gives zeros (eps > 0). NaN and infinity stay in their row.
// Throws Error(invalid_argument) on a wrong shape, dtype, stride, null pointer, D = 0 or a negative or NaN eps.
void norm(const Exec& ex, const NormArgs& args);

}  // namespace kdelta
