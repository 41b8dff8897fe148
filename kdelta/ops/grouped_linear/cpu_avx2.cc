#include "kdelta/ops/grouped_linear/cpu_kernel.h"

namespace kdelta {

void grouped_linear_avx2(const Exec& ex, const GroupedLinearArgs& args, const GroupedLinearDesc&, void* scratch) {
  grouped_linear_f32<simd::Avx2>(ex, args, scratch);
}

}  // namespace kdelta
