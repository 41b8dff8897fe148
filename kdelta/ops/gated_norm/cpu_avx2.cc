#include "kdelta/ops/gated_norm/cpu_kernel.h"

namespace kdelta {

void gated_norm_avx2(const Exec& ex, const GatedNormArgs& args, const GatedNormDesc& d, void* scratch) {
  gated_norm_cpu<simd::Avx2>(ex, args, d, scratch);
}

}  // namespace kdelta
