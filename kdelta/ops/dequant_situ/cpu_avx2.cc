#include "kdelta/ops/dequant_situ/cpu_kernel.h"

namespace kdelta {

void dequant_situ_avx2(const Exec& ex, const DequantSituArgs& args, const DequantSituDesc& desc, void* scratch) {
  dequant_situ_cpu<simd::Avx2>(ex, args, desc, scratch);
}

}  // namespace kdelta
