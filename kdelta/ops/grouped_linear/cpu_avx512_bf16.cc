#include "kdelta/ops/common/cpu/dot_bf16.h"
#include "kdelta/ops/grouped_linear/cpu_kernel.h"

namespace kdelta {

void grouped_linear_avx512_bf16(const Exec& ex, const GroupedLinearArgs& a, const GroupedLinearDesc& d, void* scratch) {
  const ExpertWork work = expert_work(a.expert_begin.data, d.E, panel_count(d.N), static_cast<int32_t*>(scratch));
  char* packs = static_cast<char*>(scratch) + expert_list_bytes(d.E);
  auto run = [&](int rank, int64_t begin, int64_t end) {
    const PackScratch s = pack_scratch(packs, rank, d.K);
    for_each_expert(work, begin, end, [&](int64_t e, int64_t first, int64_t last) {
      project_panels_bf16<simd::Avx512>(expert_projection(a, e), first, last, s);
    });
  };
  parallel_for_ranked(ex, work.items(), group_grain(work.items(), ex.threads->size()), run);
}

}  // namespace kdelta
