#include "kdelta/ops/moe_combine/cpu_kernel.h"

namespace kdelta {

void moe_combine_portable(const Exec& ex, const MoeCombineArgs& args, const MoeCombineDesc&, void*) {
  moe_combine_cpu<simd::Portable>(ex, args);
}

}  // namespace kdelta
