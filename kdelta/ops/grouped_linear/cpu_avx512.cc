#include "kdelta/ops/grouped_linear/cpu_kernel.h"

namespace kdelta {

void grouped_linear_avx512(const Exec& ex, const GroupedLinearArgs& args, const GroupedLinearDesc&, void* scratch) {
  grouped_linear_f32<simd::Avx512>(ex, args, scratch);
}

}  // namespace kdelta
