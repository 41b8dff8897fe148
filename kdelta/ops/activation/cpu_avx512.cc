#include "kdelta/ops/activation/cpu_kernel.h"

namespace kdelta {

void activation_avx512(const Exec& ex, const ActivationArgs& args, const ActivationDesc&, void*) {
  activation_cpu<simd::Avx512>(ex, args);
}

}  // namespace kdelta
