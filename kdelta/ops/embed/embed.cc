#include "kdelta/ops/embed/embed.h"

#include "kdelta/ops/embed/variants.h"

namespace kdelta {
namespace {

constexpr EmbedVariant kVariants[] = {
#define KDELTA_VARIANT(name, needs, refuse, scratch) {#name, needs, refuse, scratch, KDELTA_RUN(needs, embed_##name)},
#include "kdelta/ops/embed/variants.inc"
#undef KDELTA_VARIANT
};

void check(const EmbedArgs& a) {
  if (a.token.shape.rank != 1)
    fail(ErrorCode::invalid_argument, "embed: token: shape ", to_string(a.token.shape), ", expected [T]");
  const int64_t T = a.token.dim(0);
  expect_view(a.token, {T}, "embed: token");
  expect_dtype(a.table.dtype, {DType::f32, DType::bf16}, "embed: table");
  expect_matrix(a.table, a.table.rows, a.table.cols, "embed: table");
  expect_activation(a.out, {T, a.table.cols}, "embed: out");
  if (a.first < 0 || a.first > embed_vocabulary(a) - a.table.rows)
    fail(ErrorCode::invalid_argument, "embed: first: ", a.first, ", expected 0..", embed_vocabulary(a) - a.table.rows);
}

void check_tokens(const EmbedArgs& a) {
  for (int64_t t = 0; t < a.token.dim(0); ++t) {
    const int32_t id = *a.token.at(t);
    if (id < -1 || id >= embed_vocabulary(a))
      fail(ErrorCode::invalid_argument, "embed: token[", t, "] is ", id, ", expected -1..", embed_vocabulary(a) - 1);
  }
}

}  // namespace

std::span<const EmbedVariant> embed_variants() {
  return kVariants;
}

Cost embed_cost(const EmbedArgs& a) {
  const double n = static_cast<double>(a.token.dim(0)) * static_cast<double>(a.table.cols);
  return {.bytes = n * static_cast<double>(dtype_bytes(a.table.dtype) + dtype_bytes(a.out.dtype)), .flops = 0};
}

void embed(const Exec& ex, const EmbedArgs& args) {
  check(args);
  if (ex.device.kind == DeviceKind::cpu && !ex.planning) check_tokens(args);
  const EmbedDesc desc{target_of(ex), args.token.dim(0), args.table.cols};
  run_op(ex, "embed", embed_variants(), args, desc, embed_cost(args));
}

}  // namespace kdelta
