#include "kdelta/ops/norm/norm.h"

#include "kdelta/ops/common/cuda/limits.h"
#include "kdelta/ops/norm/variants.h"

namespace kdelta {
const char* norm_cuda_refuse(const NormDesc& d) {
  return d.width > cuda::kMaxRowWidth ? "rows wider than 16384" : nullptr;
}

namespace {

constexpr NormVariant kVariants[] = {
#define KDELTA_VARIANT(name, needs, refuse, scratch) {#name, needs, refuse, scratch, KDELTA_RUN(needs, norm_##name)},
#include "kdelta/ops/norm/variants.inc"
#undef KDELTA_VARIANT
};

void check(const NormArgs& a) {
  if (a.x.shape.rank != 2)
    fail(ErrorCode::invalid_argument, "norm: x: shape ", to_string(a.x.shape), ", expected [T, D]");
  const int64_t T = a.x.dim(0), D = a.x.dim(1);
  if (D == 0) fail(ErrorCode::invalid_argument, "norm: x: width 0");
  expect_activation(a.x, {T, D}, "norm: x");
  expect_view(a.weight, {D}, "norm: weight");
  expect_activation(a.out, {T, D}, "norm: out");
  if (!(a.eps >= 0)) fail(ErrorCode::invalid_argument, "norm: eps: ", a.eps, ", expected >= 0");
}

}  // namespace

std::span<const NormVariant> norm_variants() {
  return kVariants;
}

Cost norm_cost(const NormArgs& a) {
  const double n = static_cast<double>(a.x.shape.numel());
  return {.bytes = n * static_cast<double>(dtype_bytes(a.x.dtype) + dtype_bytes(a.out.dtype)) +
                   4.0 * static_cast<double>(a.x.dim(1)),
          .flops = 4 * n};
}

void norm(const Exec& ex, const NormArgs& args) {
  check(args);
  const NormDesc desc{target_of(ex), args.x.dim(0), args.x.dim(1)};
  run_op(ex, "norm", norm_variants(), args, desc, norm_cost(args));
}

}  // namespace kdelta
