#include "bench/support/bench.h"
#include "kdelta/ops/gated_norm/variants.h"

namespace kdelta {
namespace {

// out = x over about 512 MB: two reads and a write of H heads of 128.
void add_gated_norm(const std::string& variant, int64_t H, DType dtype) {
  const int64_t D = 128, bytes = dtype_bytes(dtype), T = (int64_t{512} << 20) / (2 * H * D * bytes);
  GatedNormArgs shape{.x = AnyConstView(nullptr, dtype, {T, H, D}),
                      .gate = AnyConstView(nullptr, dtype, {T, H, D}),
                      .eps = 1e-5f,
                      .out = AnyView(nullptr, dtype, {T, H, D})};
  bench::add({.op = "gated_norm",
              .variant = variant,
              .shape = str("T=", T, " H=", H, " D=128 ", dtype_name(dtype), " in place"),
              .cost = gated_norm_cost(shape),
              .roof = {bench::RoofKind::update, int64_t{512} << 20},
              .make = [=] {
                auto x = std::make_shared<Buffer>(Device{}, T * H * D * bytes);
                auto gate = std::make_shared<Buffer>(Device{}, T * H * D * bytes);
                auto weight = std::make_shared<Buffer>(Device{}, D * 4);
                for (const auto& buffer : {x, gate}) bench::fill(buffer->data(), buffer->bytes());
                for (int64_t d = 0; d < D; ++d) static_cast<float*>(weight->data())[d] = 1;
                return [=]() mutable {
                  shape.x = shape.out = x->view(dtype, {T, H, D});
                  shape.gate = gate->view(dtype, {T, H, D});
                  shape.weight = weight->view<float>({D});
                  gated_norm(bench::exec_with("gated_norm", variant), shape);
                };
              }});
}

KDELTA_BENCH(gated_norm) {
  for (const std::string& variant : bench::fast_variants(gated_norm_variants())) {
    add_gated_norm(variant, 32, DType::bf16);
    add_gated_norm(variant, 96, DType::bf16);
    add_gated_norm(variant, 96, DType::f32);
  }
}

}  // namespace
}  // namespace kdelta
