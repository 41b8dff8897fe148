#include "kdelta/ops/gated_norm/gated_norm.h"

#include "kdelta/ops/common/cuda/limits.h"
#include "kdelta/ops/common/overlap.h"
#include "kdelta/ops/gated_norm/variants.h"

namespace kdelta {

int64_t gated_norm_cpu_scratch(const GatedNormDesc& d) {
  return gated_norm_scratch_stride(d) * d.target.threads * static_cast<int64_t>(sizeof(float));
}

const char* gated_norm_cuda_refuse(const GatedNormDesc& d) {
  return d.width > cuda::kMaxRowWidth ? "heads wider than 16384" : nullptr;
}

namespace {

constexpr GatedNormVariant kVariants[] = {
#define KDELTA_VARIANT(name, needs, refuse, scratch) \
  {#name, needs, refuse, scratch, KDELTA_RUN(needs, gated_norm_##name)},
#include "kdelta/ops/gated_norm/variants.inc"
#undef KDELTA_VARIANT
};

void check(const GatedNormArgs& a) {
  if (a.x.shape.rank != 3)
    fail(ErrorCode::invalid_argument, "gated_norm: x: shape ", to_string(a.x.shape), ", expected [T, H, D]");
  const Shape shape = a.x.shape;
  if (shape[2] == 0) fail(ErrorCode::invalid_argument, "gated_norm: x: width 0");
  expect_activation(a.x, shape, "gated_norm: x");
  expect_activation(a.gate, shape, "gated_norm: gate");
  if (!a.weight.null()) expect_view(a.weight, {shape[2]}, "gated_norm: weight");
  if (!a.bias.null()) expect_view(a.bias, {shape[2]}, "gated_norm: bias");
  if (!a.residual.null()) expect_activation(a.residual, shape, "gated_norm: residual");
  if (!a.sum_out.null()) expect_activation(a.sum_out, shape, "gated_norm: sum_out");
  if (!a.live.null()) expect_view(a.live, {1}, "gated_norm: live");
  expect_activation(a.out, shape, "gated_norm: out");
  if (!(a.eps >= 0)) fail(ErrorCode::invalid_argument, "gated_norm: eps: ", a.eps, ", expected >= 0");
}

// A row is read as a whole before it is written, so out may be x row by row and nothing else.
void check_overlaps(const GatedNormArgs& a) {
  constexpr const char *kOut = "gated_norm: out", *kSum = "gated_norm: sum_out";
  if (!same_view(a.out, a.x)) expect_apart(a.out, a.x, kOut, "x without being x");
  expect_apart(a.out, a.gate, kOut, "gate");
  expect_apart(a.out, a.residual, kOut, "residual");
  if (a.sum_out.null()) return;
  expect_apart(a.sum_out, a.x, kSum, "x");
  expect_apart(a.sum_out, a.gate, kSum, "gate");
  expect_apart(a.sum_out, a.residual, kSum, "residual");
  expect_apart(a.sum_out, a.out, kSum, "out");
}

}  // namespace

std::span<const GatedNormVariant> gated_norm_variants() {
  return kVariants;
}

Cost gated_norm_cost(const GatedNormArgs& a) {
  int64_t element = dtype_bytes(a.x.dtype) + dtype_bytes(a.gate.dtype) + dtype_bytes(a.out.dtype);
  if (!a.residual.null()) element += dtype_bytes(a.residual.dtype);
  if (!a.sum_out.null()) element += dtype_bytes(a.sum_out.dtype);
  const double n = static_cast<double>(a.x.shape.numel());
  return {.bytes = n * static_cast<double>(element), .flops = 6 * n};
}

void gated_norm(const Exec& ex, const GatedNormArgs& args) {
  check(args);
  if (!ex.planning) check_overlaps(args);
  const GatedNormDesc desc{target_of(ex), args.x.dim(0), args.x.dim(1), args.x.dim(2)};
  run_op(ex, "gated_norm", gated_norm_variants(), args, desc, gated_norm_cost(args));
}

}  // namespace kdelta
