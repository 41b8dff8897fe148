// The fp32 kernel of linear over any V of simd.h: panels of weight rows handed out to the team.
#pragma once

#include "kdelta/ops/common/cpu/dot.h"
#include "kdelta/ops/common/cpu/parallel.h"
#include "kdelta/ops/linear/variants.h"

namespace kdelta {

KDELTA_INLINE Projection linear_projection(const LinearArgs& a) {
  return {.w = a.w, .x = a.x, .addend = a.addend, .out = a.out, .T = a.x.dim(0)};
}

template <class V>
void linear_f32(const Exec& ex, const LinearArgs& a, void* scratch) {
  const Projection p = linear_projection(a);
  const int64_t panels = panel_count(a.w.rows), per_thread = dot_scratch_bytes(a.w.dtype, a.w.cols);
  if (p.T == 0) return;
  parallel_for_ranked(ex, panels, panel_grain(a.w.row_bytes, panels, ex.threads->size()),
                      [&](int rank, int64_t begin, int64_t end) {
                        auto* panel = reinterpret_cast<float*>(static_cast<char*>(scratch) + rank * per_thread);
                        project_panels_f32<V>(p, begin, end, panel);
                      });
}

}  // namespace kdelta
