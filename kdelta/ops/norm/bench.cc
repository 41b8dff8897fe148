#include "bench/support/bench.h"
#include "kdelta/ops/norm/variants.h"

namespace kdelta {
namespace {

// Rows in place over 512 MB: norm is bandwidth, in and out.
void add_norm(const std::string& variant, int64_t D) {
  const int64_t T = (int64_t{512} << 20) / (2 * D);
  const NormArgs shape{
      .x = AnyConstView(nullptr, DType::bf16, {T, D}), .out = AnyView(nullptr, DType::bf16, {T, D}), .eps = 1e-5f};
  bench::add({.op = "norm",
              .variant = variant,
              .shape = str("T=", T, " D=", D, " bf16 in place"),
              .cost = norm_cost(shape),
              .roof = {bench::RoofKind::update, int64_t{512} << 20},
              .make = [=] {
                auto data = std::make_shared<Buffer>(Device{}, T * D * 2),
                     weight = std::make_shared<Buffer>(Device{}, D * 4);
                bench::fill(data->data(), data->bytes());
                for (int64_t d = 0; d < D; ++d) static_cast<float*>(weight->data())[d] = 1;
                return [=] {
                  norm(bench::exec_with("norm", variant), {.x = data->view(DType::bf16, {T, D}),
                                                           .weight = weight->view<float>({D}),
                                                           .out = data->view(DType::bf16, {T, D}),
                                                           .eps = 1e-5f});
                };
              }});
}

KDELTA_BENCH(norm) {
  for (const std::string& variant : bench::fast_variants(norm_variants()))
    for (int64_t D : {128, 2304, 7168}) add_norm(variant, D);
}

}  // namespace
}  // namespace kdelta
