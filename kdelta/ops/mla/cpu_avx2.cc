#include "kdelta/ops/mla/cpu_kernel.h"

namespace kdelta {

void mla_avx2(const Exec& ex, const MlaArgs& args, const MlaDesc& desc, void* scratch) {
  mla_cpu<simd::Avx2>(ex, args, desc, scratch);
}

}  // namespace kdelta
