#include "kdelta/ops/moe_combine/cpu_kernel.h"

namespace kdelta {

void moe_combine_avx2(const Exec& ex, const MoeCombineArgs& args, const MoeCombineDesc&, void*) {
  moe_combine_cpu<simd::Avx2>(ex, args);
}

}  // namespace kdelta
