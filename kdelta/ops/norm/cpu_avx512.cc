#include "kdelta/ops/norm/cpu_kernel.h"

namespace kdelta {

void norm_avx512(const Exec& ex, const NormArgs& args, const NormDesc&, void*) {
  norm_cpu<simd::Avx512>(ex, args);
}

}  // namespace kdelta
