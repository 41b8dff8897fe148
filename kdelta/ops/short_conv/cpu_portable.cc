#include "kdelta/ops/short_conv/cpu_kernel.h"

namespace kdelta {

void short_conv_portable(const Exec& ex, const ShortConvArgs& args, const ShortConvDesc&, void*) {
  short_conv_cpu<simd::Portable>(ex, args);
}

}  // namespace kdelta
