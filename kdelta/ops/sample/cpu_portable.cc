#include "kdelta/ops/sample/cpu_kernel.h"

namespace kdelta {

void sample_portable(const Exec& ex, const SampleArgs& args, const SampleDesc& desc, void* scratch) {
  sample_cpu<simd::Portable>(ex, args, desc, scratch);
}

}  // namespace kdelta
