#include "kdelta/ops/short_conv/cpu_kernel.h"

namespace kdelta {

void short_conv_avx2(const Exec& ex, const ShortConvArgs& args, const ShortConvDesc&, void*) {
  short_conv_cpu<simd::Avx2>(ex, args);
}

}  // namespace kdelta
