#include "kdelta/ops/attn_res/attn_res.h"

#include <algorithm>

#include "kdelta/ops/attn_res/variants.h"
#include "kdelta/ops/common/alignment.h"
#include "kdelta/ops/common/cuda/limits.h"

namespace kdelta {

int64_t attn_res_cpu_scratch(const AttnResDesc& d) {
  return attn_res_scratch_stride(d) * d.target.threads * static_cast<int64_t>(sizeof(float));
}

const char* attn_res_cuda_refuse(const AttnResDesc& d) {
  if (d.width > cuda::kMaxRowWidth) return "rows wider than 16384";
  return d.streams > 32 ? "more than 32 streams" : nullptr;
}

int64_t attn_res_ring_slots(const AttnResDesc& d) {
  constexpr int64_t kRingBytes = 192 * 1024, kMost = 32;  // beside the kernel's weights and sums
  return std::min(kMost, kRingBytes / (d.width * 2));
}

const char* attn_res_ring_refuse(const AttnResDesc& d) {
  if (d.dtype != DType::bf16) return "bf16 alone";
  if (!d.aligned) return "rows that are not whole 16-byte words";
  if (d.width > 7168) return "rows wider than 7168";
  return d.streams > 9 ? "more than 9 streams" : nullptr;
}

const char* attn_res_cluster_refuse(const AttnResDesc& d) {
  constexpr int64_t kMost = 32;  // two blocks a multiprocessor; from 64 tokens on rings are as fast
  return d.rows > kMost ? "more than 32 tokens" : attn_res_ring_refuse(d);
}

namespace {

constexpr AttnResVariant kVariants[] = {
#define KDELTA_VARIANT(name, needs, refuse, scratch) \
  {#name, needs, refuse, scratch, KDELTA_RUN(needs, attn_res_##name)},
#include "kdelta/ops/attn_res/variants.inc"
#undef KDELTA_VARIANT
};

void check(const AttnResArgs& a) {
  if (a.sum.shape.rank != 2)
    fail(ErrorCode::invalid_argument, "attn_res: sum: shape ", to_string(a.sum.shape), ", expected [T, D]");
  const int64_t T = a.sum.dim(0), D = a.sum.dim(1);
  if (D == 0) fail(ErrorCode::invalid_argument, "attn_res: sum: width 0");
  const int64_t capacity = a.blocks.shape.rank == 3 ? a.blocks.dim(0) : 0;
  expect_activation(a.sum, {T, D}, "attn_res: sum");
  if (a.n < 0 || a.n > capacity)
    fail(ErrorCode::invalid_argument, "attn_res: n: ", a.n, " blocks exceed the stream capacity, expected 0..",
         capacity);
  if (a.n > 0) {
    expect_activation(a.blocks, {capacity, T, D}, "attn_res: blocks");
    expect_dtype(a.blocks.dtype, {a.sum.dtype}, "attn_res: blocks");
  }
  if (a.addend.null() != a.sum_out.null())
    fail(ErrorCode::invalid_argument, "attn_res: sum_out: ", a.sum_out.null() ? "null" : "given", " where addend is ",
         a.addend.null() ? "null" : "given", ", expected both or neither");
  if (!a.addend.null()) {
    expect_activation(a.addend, {T, D}, "attn_res: addend");
    expect_dtype(a.addend.dtype, {a.sum.dtype}, "attn_res: addend");
    expect_activation(a.sum_out, {T, D}, "attn_res: sum_out");
    expect_dtype(a.sum_out.dtype, {a.sum.dtype}, "attn_res: sum_out");
  }
  expect_view(a.score_weight, {D}, "attn_res: score_weight");
  if (!(a.eps >= 0)) fail(ErrorCode::invalid_argument, "attn_res: eps: ", a.eps, ", expected >= 0");
  if (!a.norm_weight.null()) {
    expect_view(a.norm_weight, {D}, "attn_res: norm_weight");
    if (!(a.norm_eps >= 0)) fail(ErrorCode::invalid_argument, "attn_res: norm_eps: ", a.norm_eps, ", expected >= 0");
  }
  expect_activation(a.out, {T, D}, "attn_res: out");
  expect_dtype(a.out.dtype, {a.sum.dtype}, "attn_res: out");
}

}  // namespace

std::span<const AttnResVariant> attn_res_variants() {
  return kVariants;
}

Cost attn_res_cost(const AttnResArgs& a) {
  const double n = static_cast<double>(a.sum.shape.numel()), streams = static_cast<double>(a.n + 1);
  const double added = a.addend.null() ? 0 : 1;
  const double weights = static_cast<double>(a.sum.dim(1)) * (a.norm_weight.null() ? 4 : 8);
  return {.bytes = n * (streams + 1 + 2 * added) * static_cast<double>(dtype_bytes(a.sum.dtype)) + weights,
          .flops = n * (6 * streams + added + (a.norm_weight.null() ? 0 : 4))};
}

void attn_res(const Exec& ex, const AttnResArgs& args) {
  check(args);
  const int64_t capacity = args.blocks.shape.rank == 3 ? args.blocks.dim(0) : 0;
  const AttnResDesc desc{
      .target = target_of(ex),
      .rows = args.sum.dim(0),
      .width = args.sum.dim(1),
      .streams = capacity + 1,
      .dtype = args.sum.dtype,
      .aligned = args.sum.dim(1) % 8 == 0 && all_aligned16(args.blocks, args.sum, args.addend, args.sum_out,
                                                           args.score_weight, args.norm_weight, args.out)};
  run_op(ex, "attn_res", attn_res_variants(), args, desc, attn_res_cost(args));
}

}  // namespace kdelta
