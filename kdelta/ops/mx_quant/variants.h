// The compiled kernels of mx_quantize and mx_dequantize, for choose(), tests and benchmarks.
#pragma once

#include "kdelta/ops/common/op.h"
#include "kdelta/ops/mx_quant/mx_quant.h"

namespace kdelta {

struct MxDesc {
  Target target;
  int64_t rows = 0, width = 0;
};

using MxQuantizeVariant = Variant<MxQuantizeArgs, MxDesc>;
std::span<const MxQuantizeVariant> mx_quantize_variants();
using MxDequantizeVariant = Variant<MxDequantizeArgs, MxDesc>;
std::span<const MxDequantizeVariant> mx_dequantize_variants();

// Columns that are quantised, and rows in use.
KDELTA_INLINE int64_t mx_width(const MxQuantizeArgs& a) {
  return a.situ ? a.x.dim(1) / 2 : a.x.dim(1);
}
int64_t mx_rows(const MxQuantizeArgs& a);

#define KDELTA_VARIANT(name, needs, refuse, scratch)                                 \
  void mx_quantize_##name(const Exec&, const MxQuantizeArgs&, const MxDesc&, void*); \
  void mx_dequantize_##name(const Exec&, const MxDequantizeArgs&, const MxDesc&, void*);
#include "kdelta/ops/mx_quant/variants.inc"
#undef KDELTA_VARIANT

}  // namespace kdelta
