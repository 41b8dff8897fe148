#include "kdelta/ops/linear/cpu_kernel.h"

namespace kdelta {

void linear_portable(const Exec& ex, const LinearArgs& args, const LinearDesc&, void* scratch) {
  linear_f32<simd::Portable>(ex, args, scratch);
}

}  // namespace kdelta
