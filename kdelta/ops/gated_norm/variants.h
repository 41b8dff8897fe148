// The compiled kernels of gated_norm, for choose(), tests and benchmarks.
#pragma once

#include "kdelta/ops/common/op.h"
#include "kdelta/ops/gated_norm/gated_norm.h"

namespace kdelta {

struct GatedNormDesc {
  Target target;
  int64_t rows = 0, heads = 0, width = 0;
};

using GatedNormVariant = Variant<GatedNormArgs, GatedNormDesc>;
std::span<const GatedNormVariant> gated_norm_variants();

// Scratch of the CPU kernels: one fp32 row per thread, on cache lines of its own.
KDELTA_INLINE int64_t gated_norm_scratch_stride(const GatedNormDesc& d) {
  return (d.width + 15) / 16 * 16;
}
int64_t gated_norm_cpu_scratch(const GatedNormDesc& d);

const char* gated_norm_cuda_refuse(const GatedNormDesc& d);

#define KDELTA_VARIANT(name, needs, refuse, scratch) \
  void gated_norm_##name(const Exec&, const GatedNormArgs&, const GatedNormDesc&, void*);
#include "kdelta/ops/gated_norm/variants.inc"
#undef KDELTA_VARIANT

}  // namespace kdelta
