#include "kdelta/ops/attn_res/cpu_kernel.h"

namespace kdelta {

void attn_res_portable(const Exec& ex, const AttnResArgs& args, const AttnResDesc& d, void* scratch) {
  attn_res_cpu<simd::Portable>(ex, args, d, scratch);
}

}  // namespace kdelta
