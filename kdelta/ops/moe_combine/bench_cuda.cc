#include "kdelta/ops/moe_combine/variants.h"
#include "tests/gpu/bench.h"

namespace kdelta {
namespace {

void add_moe_combine(const std::string& variant, int64_t T, int64_t k, int64_t D) {
  const MoeCombineArgs shape{.y = AnyConstView(nullptr, DType::bf16, {T * k, D}),
                             .position = View<const int32_t>(nullptr, {T, k}),
                             .out = AnyView(nullptr, DType::bf16, {T, D})};
  gpu_bench::add({.op = "moe_combine",
                  .variant = variant,
                  .shape = str("T=", T, " k=", k, " D=", D, " bf16"),
                  .cost = moe_combine_cost(shape),
                  .make = [=](int sets) {
                    std::vector<int32_t> places(static_cast<size_t>(T * k));
                    for (size_t i = 0; i < places.size(); ++i)
                      places[i] = static_cast<int32_t>(i * 7919 % places.size());
                    auto y = gpu_bench::filled(sets * T * k * D * 2), out = gpu_bench::filled(sets * T * D * 2),
                         weight = gpu_bench::filled(T * k * 4), position = gpu_bench::uploaded(places);
                    return [=](const Exec& ex, int set) {
                      moe_combine(ex, {.y = y->view(DType::bf16, {sets * T * k, D}).rows(set * T * k, T * k),
                                       .position = position->view<int32_t>({T, k}),
                                       .weight = weight->view<float>({T, k}),
                                       .out = out->view(DType::bf16, {sets * T, D}).rows(set * T, T)});
                    };
                  }});
}

KDELTA_GPU_BENCH(moe_combine) {
  for (const std::string& variant : gpu_bench::cuda_variants(moe_combine_variants()))
    for (int64_t T : {1, 64, 4096}) {
      add_moe_combine(variant, T, 8, 2304);
      add_moe_combine(variant, T, 16, 7168);
    }
}

}  // namespace
}  // namespace kdelta
