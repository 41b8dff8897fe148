// The compiled kernels of router, for choose(), tests and benchmarks.
#pragma once

#include "kdelta/ops/common/op.h"
#include "kdelta/ops/router/router.h"

namespace kdelta {

struct RouterDesc {
  Target target;
  int64_t tokens = 0, experts = 0, choices = 0, groups = 1;
};

using RouterVariant = Variant<RouterArgs, RouterDesc>;
std::span<const RouterVariant> router_variants();

int64_t router_reference_scratch(const RouterDesc& d);
int64_t router_cpu_scratch(const RouterDesc& d);
// A count for each expert and 64 tokens.
int64_t router_cuda_scratch(const RouterDesc& d);
const char* router_cuda_refuse(const RouterDesc& d);

#define KDELTA_VARIANT(name, needs, refuse, scratch) \
  void router_##name(const Exec&, const RouterArgs&, const RouterDesc&, void*);
#include "kdelta/ops/router/variants.inc"
#undef KDELTA_VARIANT

}  // namespace kdelta
