#include "kdelta/ops/moe_combine/moe_combine.h"

#include "kdelta/ops/moe_combine/variants.h"

namespace kdelta {
const char* moe_combine_cuda_refuse(const MoeCombineDesc& d) {
  return d.choices > 256 ? "more than 256 choices" : nullptr;
}

namespace {

constexpr MoeCombineVariant kVariants[] = {
#define KDELTA_VARIANT(name, needs, refuse, scratch) \
  {#name, needs, refuse, scratch, KDELTA_RUN(needs, moe_combine_##name)},
#include "kdelta/ops/moe_combine/variants.inc"
#undef KDELTA_VARIANT
};

void check(const MoeCombineArgs& a) {
  if (a.out.shape.rank != 2)
    fail(ErrorCode::invalid_argument, "moe_combine: out: shape ", to_string(a.out.shape), ", expected [T, D]");
  if (a.y.shape.rank != 2)
    fail(ErrorCode::invalid_argument, "moe_combine: y: shape ", to_string(a.y.shape), ", expected [P, D]");
  if (a.position.shape.rank != 2)
    fail(ErrorCode::invalid_argument, "moe_combine: position: shape ", to_string(a.position.shape),
         ", expected [T, k]");
  const int64_t T = a.out.dim(0), D = a.out.dim(1);
  expect_activation(a.out, {T, D}, "moe_combine: out");
  expect_activation(a.y, {a.y.dim(0), D}, "moe_combine: y");
  expect_view(a.position, {T, a.position.dim(1)}, "moe_combine: position");
  expect_view(a.weight, {T, a.position.dim(1)}, "moe_combine: weight");
  if (!a.addend.null()) expect_activation(a.addend, {T, D}, "moe_combine: addend");
}

void check_positions(const MoeCombineArgs& a) {
  const int64_t P = a.y.dim(0);
  for (int64_t t = 0; t < a.position.dim(0); ++t)
    for (int64_t i = 0; i < a.position.dim(1); ++i)
      if (const int32_t p = *a.position.at(t, i); p < -1 || p >= P)
        fail(ErrorCode::invalid_argument, "moe_combine: position[", t, ", ", i, "] is ", p, ", expected -1..", P - 1);
}

}  // namespace

std::span<const MoeCombineVariant> moe_combine_variants() {
  return kVariants;
}

Cost moe_combine_cost(const MoeCombineArgs& a) {
  const double out = static_cast<double>(a.out.shape.numel()), pairs = static_cast<double>(a.position.shape.numel());
  const double read = pairs * static_cast<double>(a.out.dim(1));
  const double addend = a.addend.null() ? 0 : out * static_cast<double>(dtype_bytes(a.addend.dtype));
  return {.bytes = read * static_cast<double>(dtype_bytes(a.y.dtype)) +
                   out * static_cast<double>(dtype_bytes(a.out.dtype)) + addend + 8 * pairs,
          .flops = 2 * read + (a.addend.null() ? 0 : out)};
}

void moe_combine(const Exec& ex, const MoeCombineArgs& args) {
  check(args);
  if (!ex.planning && ex.device.kind == DeviceKind::cpu) check_positions(args);
  const MoeCombineDesc desc{target_of(ex), args.out.dim(0), args.position.dim(1), args.out.dim(1)};
  run_op(ex, "moe_combine", moe_combine_variants(), args, desc, moe_combine_cost(args));
}

}  // namespace kdelta
