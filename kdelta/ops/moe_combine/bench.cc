#include "bench/support/bench.h"
#include "kdelta/ops/moe_combine/variants.h"

namespace kdelta {
namespace {

// K3's latent width; y in fp32 as grouped_linear leaves it, the pairs far apart as expert order leaves them.
void add_combine(const std::string& variant, int64_t T, int64_t k, int64_t D) {
  const MoeCombineArgs shape{.y = AnyConstView(nullptr, DType::f32, {T * k, D}),
                             .position = View<const int32_t>(nullptr, {T, k}),
                             .weight = View<const float>(nullptr, {T, k}),
                             .out = AnyView(nullptr, DType::bf16, {T, D})};
  bench::add({.op = "moe_combine",
              .variant = variant,
              .shape = str("T=", T, " k=", k, " D=", D, " f32 to bf16"),
              .cost = moe_combine_cost(shape),
              .roof = {bench::RoofKind::read, T * k * D * 4},
              .make = [=] {
                auto y = std::make_shared<Buffer>(Buffer::zeros(Device{}, T * k * D * 4)),
                     out = std::make_shared<Buffer>(Device{}, T * D * 2);
                auto weight = std::make_shared<Buffer>(Buffer::zeros(Device{}, T * k * 4)),
                     position = std::make_shared<Buffer>(Device{}, T * k * 4);
                for (int64_t i = 0; i < T * k; ++i)
                  static_cast<int32_t*>(position->data())[i] = static_cast<int32_t>(i % k * T + i / k);
                return [=] {
                  moe_combine(bench::exec_with("moe_combine", variant), {.y = y->view(DType::f32, {T * k, D}),
                                                                         .position = position->view<int32_t>({T, k}),
                                                                         .weight = weight->view<float>({T, k}),
                                                                         .out = out->view(DType::bf16, {T, D})});
                };
              }});
}

KDELTA_BENCH(moe_combine) {
  for (const std::string& variant : bench::fast_variants(moe_combine_variants()))
    for (int64_t T : {1, 1024}) add_combine(variant, T, 16, 3584);
}

}  // namespace
}  // namespace kdelta
