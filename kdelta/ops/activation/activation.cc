#include "kdelta/ops/activation/activation.h"

#include "kdelta/ops/activation/variants.h"

namespace kdelta {
namespace {

constexpr ActivationVariant kVariants[] = {
#define KDELTA_VARIANT(name, needs, refuse, scratch) \
  {#name, needs, refuse, scratch, KDELTA_RUN(needs, activation_##name)},
#include "kdelta/ops/activation/variants.inc"
#undef KDELTA_VARIANT
};

void check(const ActivationArgs& a) {
  if (a.gate.shape.rank != 2)
    fail(ErrorCode::invalid_argument, "activation: gate: shape ", to_string(a.gate.shape), ", expected [T, N]");
  const Shape shape = a.gate.shape;
  expect_activation(a.gate, shape, "activation: gate");
  expect_activation(a.up, shape, "activation: up");
  expect_activation(a.out, shape, "activation: out");
  if (a.kind != ActivationKind::situ) return;
  if (!(a.beta > 0)) fail(ErrorCode::invalid_argument, "activation: beta: ", a.beta, ", expected > 0");
  if (!(a.linear_beta >= 0))
    fail(ErrorCode::invalid_argument, "activation: linear_beta: ", a.linear_beta,
         ", expected >= 0 (0: up is used as it is)");
}

}  // namespace

std::span<const ActivationVariant> activation_variants() {
  return kVariants;
}

Cost activation_cost(const ActivationArgs& a) {
  const double n = static_cast<double>(a.gate.shape.numel());
  const int64_t bytes = dtype_bytes(a.gate.dtype) + dtype_bytes(a.up.dtype) + dtype_bytes(a.out.dtype);
  return {.bytes = n * static_cast<double>(bytes), .flops = 4 * n};
}

void activation(const Exec& ex, const ActivationArgs& args) {
  check(args);
  const ActivationDesc desc{target_of(ex), args.gate.dim(0), args.gate.dim(1)};
  run_op(ex, "activation", activation_variants(), args, desc, activation_cost(args));
}

}  // namespace kdelta
