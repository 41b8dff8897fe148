// The compiled kernels of sample, for choose(), tests and benchmarks.
#pragma once

#include "kdelta/ops/common/op.h"
#include "kdelta/ops/sample/sample.h"

namespace kdelta {

struct SampleDesc {
  Target target;
  int64_t rows = 0, vocabulary = 0;
};

using SampleVariant = Variant<SampleArgs, SampleDesc>;
std::span<const SampleVariant> sample_variants();

int64_t sample_cpu_scratch(const SampleDesc& d);

#define KDELTA_VARIANT(name, needs, refuse, scratch) \
  void sample_##name(const Exec&, const SampleArgs&, const SampleDesc&, void*);
#include "kdelta/ops/sample/variants.inc"
#undef KDELTA_VARIANT

}  // namespace kdelta
