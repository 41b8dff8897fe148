// The compiled kernels of norm, for choose(), tests and benchmarks.
#pragma once

#include "kdelta/ops/common/op.h"
#include "kdelta/ops/norm/norm.h"

namespace kdelta {

struct NormDesc {
  Target target;
  int64_t rows = 0, width = 0;
};

using NormVariant = Variant<NormArgs, NormDesc>;
std::span<const NormVariant> norm_variants();

const char* norm_cuda_refuse(const NormDesc& d);

#define KDELTA_VARIANT(name, needs, refuse, scratch) \
  void norm_##name(const Exec&, const NormArgs&, const NormDesc&, void*);
#include "kdelta/ops/norm/variants.inc"
#undef KDELTA_VARIANT

}  // namespace kdelta
