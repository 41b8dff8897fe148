#include "kdelta/ops/all_gather/all_gather.h"

#include "kdelta/ops/all_gather/variants.h"
#include "kdelta/ops/common/overlap.h"

namespace kdelta {
namespace {

constexpr AllGatherVariant kVariants[] = {
#define KDELTA_VARIANT(name, needs, refuse, scratch) \
  {#name, needs, refuse, scratch, KDELTA_RUN(needs, all_gather_##name)},
#include "kdelta/ops/all_gather/variants.inc"
#undef KDELTA_VARIANT
};

void check(const Exec& ex, const AllGatherArgs& a) {
  if (ex.comm == nullptr) fail(ErrorCode::invalid_argument, "all_gather: no communicator, expected that of the ranks");
  if (a.part.shape.rank != 2)
    fail(ErrorCode::invalid_argument, "all_gather: part: shape ", to_string(a.part.shape), ", expected [T, W]");
  expect_activation(a.part, a.part.shape, "all_gather: part");
  expect_activation(a.out, {a.part.dim(0), ex.comm->ranks() * a.part.dim(1)}, "all_gather: out");
  expect_dtype(a.out.dtype, {a.part.dtype}, "all_gather: out");
  if (!ex.planning) expect_apart(a.out, a.part, "all_gather: out", "part");
}

}  // namespace

std::span<const AllGatherVariant> all_gather_variants() {
  return kVariants;
}

const AllGatherArgs* const* all_gather_meet(const Exec& ex, const AllGatherArgs& a) {
  const char* op = a.part.dtype == DType::bf16 ? "all_gather of BF16" : "all_gather of F32";
  return reinterpret_cast<const AllGatherArgs* const*>(ex.comm->meet(op, a.part.shape, &a).data());
}

Cost all_gather_cost(const AllGatherArgs& a) {
  return {.bytes = 2.0 * static_cast<double>(a.out.shape.numel() * dtype_bytes(a.out.dtype)), .flops = 0};
}

void all_gather(const Exec& ex, const AllGatherArgs& args) {
  check(ex, args);
  const AllGatherDesc desc{target_of(ex), ex.comm->ranks(), args.part.dim(0), args.part.dim(1)};
  run_op(ex, "all_gather", all_gather_variants(), args, desc, all_gather_cost(args));
}

}  // namespace kdelta
