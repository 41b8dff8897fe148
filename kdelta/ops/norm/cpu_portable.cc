#include "kdelta/ops/norm/cpu_kernel.h"

namespace kdelta {

void norm_portable(const Exec& ex, const NormArgs& args, const NormDesc&, void*) {
  norm_cpu<simd::Portable>(ex, args);
}

}  // namespace kdelta
