#include "kdelta/ops/linear/cpu_kernel.h"

namespace kdelta {

void linear_avx2(const Exec& ex, const LinearArgs& args, const LinearDesc&, void* scratch) {
  linear_f32<simd::Avx2>(ex, args, scratch);
}

}  // namespace kdelta
