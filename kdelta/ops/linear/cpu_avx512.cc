#include "kdelta/ops/linear/cpu_kernel.h"

namespace kdelta {

void linear_avx512(const Exec& ex, const LinearArgs& args, const LinearDesc&, void* scratch) {
  linear_f32<simd::Avx512>(ex, args, scratch);
}

}  // namespace kdelta
