// The compiled kernels of activation, for choose(), tests and benchmarks.
#pragma once

#include "kdelta/ops/activation/activation.h"
#include "kdelta/ops/common/op.h"

namespace kdelta {

struct ActivationDesc {
  Target target;
  int64_t rows = 0, width = 0;
};

using ActivationVariant = Variant<ActivationArgs, ActivationDesc>;
std::span<const ActivationVariant> activation_variants();

#define KDELTA_VARIANT(name, needs, refuse, scratch) \
  void activation_##name(const Exec&, const ActivationArgs&, const ActivationDesc&, void*);
#include "kdelta/ops/activation/variants.inc"
#undef KDELTA_VARIANT

}  // namespace kdelta
