#include "kdelta/ops/activation/cpu_kernel.h"

namespace kdelta {

void activation_portable(const Exec& ex, const ActivationArgs& args, const ActivationDesc&, void*) {
  activation_cpu<simd::Portable>(ex, args);
}

}  // namespace kdelta
