#include "kdelta/ops/router/variants.h"
#include "tests/gpu/bench.h"

namespace kdelta {
namespace {

void add_router(const std::string& variant, int64_t T, int64_t E, int64_t k) {
  const RouterArgs shape{.logits = View<const float>(nullptr, {T, E}), .k = k};
  gpu_bench::add(
      {.op = "router",
       .variant = variant,
       .shape = str("T=", T, " E=", E, " k=", k),
       .cost = router_cost(shape),
       .make = [=](int sets) {
         auto logits = gpu_bench::filled(sets * T * E * 4), bias = gpu_bench::filled(E * 4),
              out = std::make_shared<Buffer>(Device{DeviceKind::cuda, 0}, sets * (T * k * 16 + (E + 1) * 4));
         return [=](const Exec& ex, int set) {
           auto* base = static_cast<int32_t*>(out->data()) + set * (T * k * 4 + E + 1);
           router(ex, {.logits = View<const float>(static_cast<const float*>(logits->data()) + set * T * E, {T, E}),
                       .bias = bias->view<float>({E}),
                       .k = k,
                       .expert = View<int32_t>(base, {T, k}),
                       .weight = View<float>(reinterpret_cast<float*>(base + T * k), {T, k}),
                       .position = View<int32_t>(base + 2 * T * k, {T, k}),
                       .source = View<int32_t>(base + 3 * T * k, {T * k}),
                       .expert_begin = View<int32_t>(base + 4 * T * k, {E + 1})});
         };
       }});
}

KDELTA_GPU_BENCH(router) {
  for (const std::string& variant : gpu_bench::cuda_variants(router_variants()))
    for (int64_t T : {1, 64, 8192}) {
      add_router(variant, T, 256, 8);
      add_router(variant, T, 896, 16);
    }
}

}  // namespace
}  // namespace kdelta
