#include "bench/support/bench.h"
#include "kdelta/ops/embed/variants.h"

namespace kdelta {
namespace {

// Scattered rows of a 512 MB table into another array. The update roof counts a read and a write per element; here the
// written lines are fetched first, a third transfer that the cost does not count.
void add_embed(const std::string& variant, DType out_dtype) {
  const int64_t D = 7168, E = (int64_t{512} << 20) / (2 * D), T = 16384;
  const EmbedArgs shape{.token = {nullptr, {T}},
                        .table = dense_matrix(nullptr, DType::bf16, E, D),
                        .out = AnyView(nullptr, out_dtype, {T, D})};
  bench::add({.op = "embed",
              .variant = variant,
              .shape = str("T=", T, " D=", D, " BF16 to ", dtype_name(out_dtype)),
              .cost = embed_cost(shape),
              .roof = {bench::RoofKind::update, int64_t{512} << 20},
              .make = [=] {
                auto table = std::make_shared<Buffer>(Device{}, E * D * 2),
                     token = std::make_shared<Buffer>(Device{}, T * 4);
                auto out = std::make_shared<Buffer>(Device{}, T * D * dtype_bytes(out_dtype));
                bench::fill(table->data(), table->bytes());
                for (int64_t t = 0; t < T; ++t)
                  static_cast<int32_t*>(token->data())[t] = static_cast<int32_t>(t * 7919 % E);
                return [=] {
                  embed(bench::exec_with("embed", variant), {.token = token->view<int32_t>({T}),
                                                             .table = dense_matrix(table->data(), DType::bf16, E, D),
                                                             .out = out->view(out_dtype, {T, D})});
                };
              }});
}

KDELTA_BENCH(embed) {
  for (const std::string& variant : bench::fast_variants(embed_variants())) {
    add_embed(variant, DType::bf16);
    add_embed(variant, DType::f32);
  }
}

}  // namespace
}  // namespace kdelta
