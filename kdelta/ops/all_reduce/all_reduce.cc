#include "kdelta/ops/all_reduce/all_reduce.h"

#include "kdelta/ops/all_reduce/variants.h"
#include "kdelta/ops/common/overlap.h"

namespace kdelta {
namespace {

constexpr AllReduceVariant kVariants[] = {
#define KDELTA_VARIANT(name, needs, refuse, scratch) \
  {#name, needs, refuse, scratch, KDELTA_RUN(needs, all_reduce_##name)},
#include "kdelta/ops/all_reduce/variants.inc"
#undef KDELTA_VARIANT
};

void check(const Exec& ex, const AllReduceArgs& a) {
  if (ex.comm == nullptr) fail(ErrorCode::invalid_argument, "all_reduce: no communicator, expected that of the ranks");
  if (a.out.shape.rank != 2)
    fail(ErrorCode::invalid_argument, "all_reduce: out: shape ", to_string(a.out.shape), ", expected [T, D]");
  const Shape shape = a.out.shape;
  expect_activation(a.out, shape, "all_reduce: out");
  expect_dtype(a.partial.dtype, {DType::f32}, "all_reduce: partial");
  expect_view(a.partial, shape, "all_reduce: partial");
  if (!a.addend.null()) expect_activation(a.addend, shape, "all_reduce: addend");
  if (ex.planning) return;
  expect_apart(a.out, a.partial, "all_reduce: out", "partial");
  if (!a.addend.null() && !same_view(a.out, a.addend))
    expect_apart(a.out, a.addend, "all_reduce: out", "addend other than as the same array");
}

}  // namespace

std::span<const AllReduceVariant> all_reduce_variants() {
  return kVariants;
}

const AllReduceArgs* const* all_reduce_meet(const Exec& ex, const AllReduceArgs& a) {
  const char* op = a.out.dtype == DType::bf16 ? "all_reduce to BF16" : "all_reduce to F32";
  return reinterpret_cast<const AllReduceArgs* const*>(ex.comm->meet(op, a.out.shape, &a).data());
}

void all_reduce_leave(const Exec& ex) {
  ex.comm->leave();
}

// Every rank reads its columns of all ranks and writes them to all.
Cost all_reduce_cost(const AllReduceArgs& a, int ranks) {
  const double n = static_cast<double>(a.out.shape.numel());
  const double addend = a.addend.null() ? 0 : n / ranks * static_cast<double>(dtype_bytes(a.addend.dtype));
  return {.bytes = n * static_cast<double>(4 + dtype_bytes(a.out.dtype)) + addend, .flops = n};
}

void all_reduce(const Exec& ex, const AllReduceArgs& args) {
  check(ex, args);
  const AllReduceDesc desc{target_of(ex), ex.comm->ranks(), args.out.dim(0), args.out.dim(1)};
  run_op(ex, "all_reduce", all_reduce_variants(), args, desc, all_reduce_cost(args, desc.ranks));
}

}  // namespace kdelta
