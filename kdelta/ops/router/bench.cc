#include "bench/support/bench.h"
#include "kdelta/ops/router/variants.h"

namespace kdelta {
namespace {

struct Data {
  Buffer logits, bias, weight, expert, position, source, begin;
  Data(int64_t T, int64_t E, int64_t k)
      : logits(Device{}, T * E * 4),
        bias(Buffer::zeros(Device{}, E * 4)),
        weight(Device{}, T * k * 4),
        expert(Device{}, T * k * 4),
        position(Device{}, T * k * 4),
        source(Device{}, T * k * 4),
        begin(Device{}, (E + 1) * 4) {
    uint32_t state = 1;
    for (int64_t i = 0; i < T * E; ++i) {
      state = state * 1664525u + 1013904223u;
      static_cast<float*>(logits.data())[i] = static_cast<float>(static_cast<int32_t>(state)) * 0x1p-29f;
    }
  }
  RouterArgs args(int64_t T, int64_t E, int64_t k) const {
    return {.logits = logits.view<float>({T, E}),
            .bias = bias.view<float>({E}),
            .k = k,
            .expert = expert.view<int32_t>({T, k}),
            .weight = weight.view<float>({T, k}),
            .position = position.view<int32_t>({T, k}),
            .source = source.view<int32_t>({T * k}),
            .expert_begin = begin.view<int32_t>({E + 1})};
  }
};

void add_router(const std::string& variant, int64_t T, int64_t E, int64_t k) {
  const RouterArgs shape{.logits = View<const float>(nullptr, {T, E}), .k = k};
  // In cache: the logits were written just before.
  bench::add({.op = "router",
              .variant = variant,
              .shape = str("T=", T, " E=", E, " k=", k),
              .cost = router_cost(shape),
              .roof = {bench::RoofKind::read, int64_t{4} << 20},
              .make = [=] {
                auto data = std::make_shared<Data>(T, E, k);
                return [=] { router(bench::exec_with("router", variant), data->args(T, E, k)); };
              }});
}

KDELTA_BENCH(router) {
  for (const std::string& variant : bench::fast_variants(router_variants()))
    for (int64_t T : {1, 64, 1024}) {
      add_router(variant, T, 896, 16);
      add_router(variant, T, 256, 8);
    }
}

}  // namespace
}  // namespace kdelta
