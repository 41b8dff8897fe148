// The fp32 kernel of grouped_linear over any V of simd.h: the panels of all experts that have tokens, handed out to the
// team.
#pragma once

#include "kdelta/ops/common/cpu/dot.h"
#include "kdelta/ops/common/cpu/experts.h"
#include "kdelta/ops/common/cpu/parallel.h"
#include "kdelta/ops/grouped_linear/variants.h"

namespace kdelta {

// Bytes of the list of active experts, rounded to whole cache lines.
KDELTA_INLINE int64_t expert_list_bytes(int64_t E) {
  return (E * static_cast<int64_t>(sizeof(int32_t)) + 63) / 64 * 64;
}

// Expert e over the pairs [first, first + count).
KDELTA_INLINE Projection pair_projection(const GroupedLinearArgs& a, int64_t e, int64_t first, int64_t count) {
  const Projection all{.w = a.w[static_cast<size_t>(e)], .x = a.x, .row = a.row.data, .out = a.out};
  return token_range(all, first, count);
}

KDELTA_INLINE Projection expert_projection(const GroupedLinearArgs& a, int64_t e) {
  const int64_t first = a.expert_begin.data[e];
  return pair_projection(a, e, first, a.expert_begin.data[e + 1] - first);
}

template <class V>
void grouped_linear_f32(const Exec& ex, const GroupedLinearArgs& a, void* scratch) {
  const auto E = static_cast<int64_t>(a.w.size());
  const Matrix& w = a.w[0];
  const ExpertWork work = expert_work(a.expert_begin.data, E, panel_count(w.rows), static_cast<int32_t*>(scratch));
  char* panels = static_cast<char*>(scratch) + expert_list_bytes(E);
  const int64_t per_thread = dot_scratch_bytes(w.dtype, w.cols);
  parallel_for_ranked(ex, work.items(), panel_grain(w.row_bytes, work.items(), ex.threads->size()),
                      [&](int rank, int64_t begin, int64_t end) {
                        auto* panel = reinterpret_cast<float*>(panels + rank * per_thread);
                        for_each_expert(work, begin, end, [&](int64_t e, int64_t first, int64_t last) {
                          project_panels_f32<V>(expert_projection(a, e), first, last, panel);
                        });
                      });
}

}  // namespace kdelta
