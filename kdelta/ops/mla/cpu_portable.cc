#include "kdelta/ops/mla/cpu_kernel.h"

namespace kdelta {

void mla_portable(const Exec& ex, const MlaArgs& args, const MlaDesc& desc, void* scratch) {
  mla_cpu<simd::Portable>(ex, args, desc, scratch);
}

}  // namespace kdelta
