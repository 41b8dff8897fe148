// The compiled kernels of dequant_situ, for choose(), tests and benchmarks.
#pragma once

#include "kdelta/ops/common/op.h"
#include "kdelta/ops/dequant_situ/dequant_situ.h"

namespace kdelta {

struct DequantSituDesc {
  Target target;
  int64_t rows = 0, width = 0;  // T, N
};

using DequantSituVariant = Variant<DequantSituArgs, DequantSituDesc>;
std::span<const DequantSituVariant> dequant_situ_variants();

// A row of fp32 outputs for each thread, whole cache lines.
int64_t dequant_situ_scratch(const DequantSituDesc& d);
KDELTA_INLINE int64_t dequant_situ_row(int64_t width) {
  return (width + 15) / 16 * 16;
}

// Rows in use, and the expert that owns row t: the first whose counts reach behind it; 0 without counts.
int64_t dequant_situ_rows(const DequantSituArgs& a);
int64_t dequant_situ_expert(const DequantSituArgs& a, int64_t t);

const char* dequant_situ_cuda_refuse(const DequantSituDesc& d);

#define KDELTA_VARIANT(name, needs, refuse, scratch) \
  void dequant_situ_##name(const Exec&, const DequantSituArgs&, const DequantSituDesc&, void*);
#include "kdelta/ops/dequant_situ/variants.inc"
#undef KDELTA_VARIANT

}  // namespace kdelta
