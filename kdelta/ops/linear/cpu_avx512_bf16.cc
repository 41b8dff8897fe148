#include "kdelta/ops/common/cpu/dot_bf16.h"
#include "kdelta/ops/linear/cpu_kernel.h"

namespace kdelta {

void linear_avx512_bf16(const Exec& ex, const LinearArgs& a, const LinearDesc&, void* scratch) {
  const Projection p = linear_projection(a);
  const int64_t panels = panel_count(a.w.rows);
  if (p.T == 0) return;
  auto work = [&](int rank, int64_t begin, int64_t end) {
    project_panels_bf16<simd::Avx512>(p, begin, end, pack_scratch(scratch, rank, a.w.cols));
  };
  parallel_for_ranked(ex, panels, group_grain(panels, ex.threads->size()), work);
}

}  // namespace kdelta
