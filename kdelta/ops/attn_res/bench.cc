#include "bench/support/bench.h"
#include "kdelta/ops/attn_res/variants.h"

namespace kdelta {
namespace {

// n blocks and the sum of about 512 MB in all, mixed and normed: n + 1 reads for one write, so the roof is read
// bandwidth.
void add_attn_res(const std::string& variant, int64_t n, int64_t D, DType dtype) {
  const int64_t bytes = dtype_bytes(dtype), T = (int64_t{512} << 20) / ((n + 1) * D * bytes);
  static const float weight = 1;  // cost asks only whether there is one
  AttnResArgs shape{.blocks = AnyConstView(nullptr, dtype, {n, T, D}),
                    .n = n,
                    .sum = AnyConstView(nullptr, dtype, {T, D}),
                    .eps = 1e-5f,
                    .norm_weight = {&weight, {D}},
                    .norm_eps = 1e-5f,
                    .out = AnyView(nullptr, dtype, {T, D})};
  bench::add({.op = "attn_res",
              .variant = variant,
              .shape = str("T=", T, " n=", n, " D=", D, " ", dtype_name(dtype), " + norm"),
              .cost = attn_res_cost(shape),
              .roof = {bench::RoofKind::read, int64_t{512} << 20},
              .make = [=] {
                auto streams = std::make_shared<Buffer>(Device{}, (n + 1) * T * D * bytes);
                auto out = std::make_shared<Buffer>(Device{}, T * D * bytes);
                auto weights = std::make_shared<Buffer>(Device{}, D * 4);
                bench::fill(streams->data(), streams->bytes());
                for (int64_t d = 0; d < D; ++d) static_cast<float*>(weights->data())[d] = 0.01f;
                return [=]() mutable {
                  const AnyConstView all = streams->view(dtype, {n + 1, T, D});
                  shape.blocks = all.slice(0, 0, n);
                  shape.sum = AnyConstView(all.slice(0, n, 1).data, dtype, {T, D});
                  shape.score_weight = shape.norm_weight = weights->view<float>({D});
                  shape.out = out->view(dtype, {T, D});
                  attn_res(bench::exec_with("attn_res", variant), shape);
                };
              }});
}

KDELTA_BENCH(attn_res) {
  for (const std::string& variant : bench::fast_variants(attn_res_variants())) {
    add_attn_res(variant, 8, 7168, DType::bf16);
    add_attn_res(variant, 2, 7168, DType::bf16);
    add_attn_res(variant, 8, 7168, DType::f32);
  }
}

}  // namespace
}  // namespace kdelta
