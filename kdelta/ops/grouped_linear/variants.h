// The compiled kernels of grouped_linear, for choose(), tests and benchmarks. No choice looks at P: exactness would be
// lost.
#pragma once

#include "kdelta/ops/common/op.h"
#include "kdelta/ops/grouped_linear/grouped_linear.h"

namespace kdelta {

struct GroupedLinearDesc {
  Target target;
  DType x = DType::f32, w = DType::f32, out = DType::f32;
  int64_t P = 0, E = 0, K = 0, N = 0;
};

using GroupedLinearVariant = Variant<GroupedLinearArgs, GroupedLinearDesc>;
std::span<const GroupedLinearVariant> grouped_linear_variants();

// The list of experts that have tokens, then the fp32 panels of the threads for MX weights.
int64_t grouped_linear_f32_scratch(const GroupedLinearDesc& d);
// The bf16 kernels take bf16 tokens and leave f32 weights to the fp32 kernels.
const char* grouped_linear_refuse_f32(const GroupedLinearDesc& d);
int64_t grouped_linear_pack_scratch(const GroupedLinearDesc& d);
int64_t grouped_linear_tile_scratch(const GroupedLinearDesc& d);
// The table of experts that do not lie at equal distances.
int64_t grouped_linear_cuda_scratch(const GroupedLinearDesc& d);

#define KDELTA_VARIANT(name, needs, refuse, scratch) \
  void grouped_linear_##name(const Exec&, const GroupedLinearArgs&, const GroupedLinearDesc&, void*);
#include "kdelta/ops/grouped_linear/variants.inc"
#undef KDELTA_VARIANT

}  // namespace kdelta
