#include "kdelta/ops/short_conv/cpu_kernel.h"

namespace kdelta {

void short_conv_avx512(const Exec& ex, const ShortConvArgs& args, const ShortConvDesc&, void*) {
  short_conv_cpu<simd::Avx512>(ex, args);
}

}  // namespace kdelta
