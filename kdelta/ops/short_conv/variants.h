// The compiled kernels of short_conv, for choose(), tests and benchmarks.
#pragma once

#include "kdelta/ops/common/op.h"
#include "kdelta/ops/short_conv/short_conv.h"

namespace kdelta {

struct ShortConvDesc {
  Target target;
  int64_t tokens = 0, channels = 0, sequences = 0;
};

using ShortConvVariant = Variant<ShortConvArgs, ShortConvDesc>;
std::span<const ShortConvVariant> short_conv_variants();

const char* short_conv_cuda_refuse(const ShortConvDesc& d);

#define KDELTA_VARIANT(name, needs, refuse, scratch) \
  void short_conv_##name(const Exec&, const ShortConvArgs&, const ShortConvDesc&, void*);
#include "kdelta/ops/short_conv/variants.inc"
#undef KDELTA_VARIANT

}  // namespace kdelta
