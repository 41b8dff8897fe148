// The fp32 kernel of linear over any V of simd.h: panels of weight rows handed out to the team.
#pragma once

#include "kdelta/ops/common/cpu/dot.h"
#include "kdelta/ops/common/cpu/parallel.h"
#include "kdelta/ops/linear/variants.h"

namespace kdelta {

KDELTA_INLINE ProjectionList linear_projections(const LinearArgs& a) {
  static_assert(ProjectionList::kMost >= kMaxLinearParts);
  ProjectionList list;
  list.part[list.count++] = {.w = a.w, .x = a.x, .addend = a.addend, .out = a.out, .T = a.x.dim(0)};
  for (const LinearPart& p : a.more) list.part[list.count++] = {.w = p.w, .x = a.x, .out = p.out, .T = a.x.dim(0)};
  return list;
}

template <class V>
void linear_f32(const Exec& ex, const LinearArgs& a, void* scratch) {
  if (a.x.dim(0) == 0) return;
  const ProjectionList list = linear_projections(a);
  const int64_t panels = list.panels(), per_thread = dot_scratch_bytes(a.w.dtype, a.w.cols);
  parallel_for_ranked(ex, panels, panel_grain(a.w.row_bytes, panels, ex.threads->size()),
                      [&](int rank, int64_t begin, int64_t end) {
                        auto* panel = reinterpret_cast<float*>(static_cast<char*>(scratch) + rank * per_thread);
                        list.for_each(begin, end, [&](const Projection& p, int64_t first, int64_t last) {
                          project_panels_f32<V>(p, first, last, panel);
                        });
                      });
}

}  // namespace kdelta
