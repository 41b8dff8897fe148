#include "kdelta/ops/router/router.h"

#include <cmath>
#include <limits>

#include "kdelta/ops/router/expert_order.h"
#include "kdelta/ops/router/variants.h"

namespace kdelta {
int64_t router_cuda_scratch(const RouterDesc& d) {
  return (d.tokens + 63) / 64 * d.experts * static_cast<int64_t>(sizeof(int32_t));
}

const char* router_cuda_refuse(const RouterDesc& d) {
  return d.experts > 1024 ? "more than 1024 experts" : nullptr;
}

namespace {

constexpr RouterVariant kVariants[] = {
#define KDELTA_VARIANT(name, needs, refuse, scratch) {#name, needs, refuse, scratch, KDELTA_RUN(needs, router_##name)},
#include "kdelta/ops/router/variants.inc"
#undef KDELTA_VARIANT
};

void check_groups(const RouterArgs& a, int64_t E) {
  if (a.groups < 1 || E % a.groups != 0)
    fail(ErrorCode::invalid_argument, "router: groups: ", a.groups, ", expected a divisor of the ", E, " experts");
  if (a.topk_groups < 1 || a.topk_groups > a.groups)
    fail(ErrorCode::invalid_argument, "router: topk_groups: ", a.topk_groups, ", expected 1..", a.groups);
  const int64_t eligible = E / a.groups * a.topk_groups;
  if (a.k < 1 || a.k > eligible) fail(ErrorCode::invalid_argument, "router: k: ", a.k, ", expected 1..", eligible);
}

void check(const RouterArgs& a) {
  if (a.logits.shape.rank != 2 || a.logits.dim(1) < 1)
    fail(ErrorCode::invalid_argument, "router: logits: shape ", to_string(a.logits.shape), ", expected [T, E]");
  const int64_t T = a.logits.dim(0), E = a.logits.dim(1);
  expect_view(a.logits, {T, E}, "router: logits");
  expect_view(a.bias, {E}, "router: bias");
  check_groups(a, E);
  if (T * a.k > std::numeric_limits<int32_t>::max())
    fail(ErrorCode::invalid_argument, "router: ", T, " tokens x ", a.k, " choices pass the 32-bit positions");
  if (!std::isfinite(a.scaling))
    fail(ErrorCode::invalid_argument, "router: scaling: ", a.scaling, ", expected a finite number");
  if (!a.live.null()) expect_view(a.live, {1}, "router: live");
  expect_view(a.expert, {T, a.k}, "router: expert");
  expect_view(a.weight, {T, a.k}, "router: weight");
  expect_view(a.position, {T, a.k}, "router: position");
  expect_view(a.source, {T * a.k}, "router: source");
  if (a.held < 0 || a.held > E) fail(ErrorCode::invalid_argument, "router: held: ", a.held, ", expected 0..", E);
  const int64_t held = held_experts(a);
  if (a.first < 0 || a.first > E - held)
    fail(ErrorCode::invalid_argument, "router: first: ", a.first, ", expected 0..", E - held);
  expect_view(a.expert_begin, {held + 1}, "router: expert_begin");
}

}  // namespace

std::span<const RouterVariant> router_variants() {
  return kVariants;
}

Cost router_cost(const RouterArgs& a) {
  const double n = static_cast<double>(a.logits.shape.numel()), E = static_cast<double>(a.logits.dim(1));
  const double pairs = static_cast<double>(a.logits.dim(0) * a.k);
  return {.bytes = 4 * n + 8 * E + 16 * pairs, .flops = 5 * n + 4 * pairs};
}

void router(const Exec& ex, const RouterArgs& args) {
  check(args);
  const RouterDesc desc{target_of(ex), args.logits.dim(0), args.logits.dim(1), args.k, args.groups};
  run_op(ex, "router", router_variants(), args, desc, router_cost(args));
}

}  // namespace kdelta
