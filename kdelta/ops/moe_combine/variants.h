// The compiled kernels of moe_combine, for choose(), tests and benchmarks.
#pragma once

#include "kdelta/ops/common/op.h"
#include "kdelta/ops/moe_combine/moe_combine.h"

namespace kdelta {

struct MoeCombineDesc {
  Target target;
  int64_t tokens = 0, choices = 0, width = 0;
};

using MoeCombineVariant = Variant<MoeCombineArgs, MoeCombineDesc>;
std::span<const MoeCombineVariant> moe_combine_variants();

const char* moe_combine_cuda_refuse(const MoeCombineDesc& d);

#define KDELTA_VARIANT(name, needs, refuse, scratch) \
  void moe_combine_##name(const Exec&, const MoeCombineArgs&, const MoeCombineDesc&, void*);
#include "kdelta/ops/moe_combine/variants.inc"
#undef KDELTA_VARIANT

}  // namespace kdelta
