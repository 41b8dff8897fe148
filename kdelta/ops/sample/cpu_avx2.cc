#include "kdelta/ops/sample/cpu_kernel.h"

namespace kdelta {

void sample_avx2(const Exec& ex, const SampleArgs& args, const SampleDesc& desc, void* scratch) {
  sample_cpu<simd::Avx2>(ex, args, desc, scratch);
}

}  // namespace kdelta
