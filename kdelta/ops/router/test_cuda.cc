#include <algorithm>
#include <cstring>
#include <numeric>

#include "kdelta/ops/router/variants.h"
#include "tests/gpu/effect_case.h"

namespace kdelta::test {
namespace {

struct Form {
  int64_t T = 1, E = 8, k = 2, groups = 1, topk_groups = 1, live = -1;
  bool renormalize = true, ties = false;
};

// Scores of a row are a permutation of values far apart, so that a choice does not hang on a rounding; `ties` repeats
// them. One row holds NaN.
void check(const Form& f) {
  SCOPED_TRACE(str("T ", f.T, " E ", f.E, " k ", f.k, " groups ", f.groups, " live ", f.live, " ties ", f.ties));
  Guarded<float> logits({f.T, f.E}), bias({f.E}), weight({f.T, f.k});
  Guarded<int32_t> live({1}), expert({f.T, f.k}), position({f.T, f.k}), source({f.T * f.k}), begin({f.E + 1});
  EffectCase c;
  c.array("logits", logits);
  c.array("bias", bias);
  c.array("live", live);
  c.array("weight", weight, {.relative = 2e-6, .absolute = 1e-9});
  c.array("expert", expert);
  c.array("position", position);
  c.array("source", source);
  c.array("expert_begin", begin);
  c.fill = [&](Rng& rng) {
    std::vector<int> order(static_cast<size_t>(f.E));
    for (int64_t t = 0; t < f.T; ++t) {
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), rng);
      for (int64_t e = 0; e < f.E; ++e) {
        const auto rank = static_cast<float>(order[static_cast<size_t>(e)] / (f.ties ? 4 : 1));
        logits[t * f.E + e] = 6 * rank / static_cast<float>(f.E) - 3;
      }
    }
    for (int64_t e = 0; e < f.E; ++e) bias[e] = f.ties ? 0 : 2 * static_cast<float>(e % 3);
    if (f.T > 2)
      for (int64_t e = 0; e < f.E; e += 2) logits[2 * f.E + e] = NAN;
    live[0] = static_cast<int32_t>(f.live);
  };
  c.call = [&](const Exec& ex, const EffectCase::At& at) {
    router(ex, {.logits = at(logits),
                .bias = at(bias),
                .k = f.k,
                .groups = f.groups,
                .topk_groups = f.topk_groups,
                .renormalize = f.renormalize,
                .scaling = 2.5f,
                .live = f.live >= 0 ? View<const int32_t>(at(live)) : View<const int32_t>(),
                .expert = at(expert),
                .weight = at(weight),
                .position = at(position),
                .source = at(source),
                .expert_begin = at(begin)});
  };
  c.run("router", router_variants());
}

TEST(RouterCuda, EqualsTheReferenceForEveryNumberOfExpertsChoicesAndTokens) {
  for (int64_t E : {1, 7, 64, 256, 257, 512, 896, 1024})
    for (int64_t T : {1, 3, 8, 9, 63, 64, 65, 200}) {
      check({.T = T, .E = E, .k = std::min<int64_t>(E, 8)});
      check({.T = T, .E = E, .k = std::min<int64_t>(E, 16), .renormalize = false, .ties = true});
    }
  check({.T = 1500, .E = 896, .k = 16});
  for (int64_t T : {1, 2}) check({.T = T, .E = 100, .k = 32, .ties = true}), check({.T = T, .E = 100, .k = 33});
}

TEST(RouterCuda, GroupsAndLiveRowsEqualTheReference) {
  for (int64_t T : {1, 5, 130}) {
    check({.T = T, .E = 256, .k = 8, .groups = 8, .topk_groups = 4});
    check({.T = T, .E = 64, .k = 3, .groups = 64, .topk_groups = 5});
    for (int64_t live : {int64_t{0}, T / 2, T, T + 3}) check({.T = T, .E = 256, .k = 8, .live = live});
  }
}

// A few tokens are routed by another kernel than nine, and by one block together.
TEST(RouterCuda, ATokensChoiceHasTheSameBitsWhateverTheNumberOfTokens) {
  for (const auto& [E, k] : {std::pair<int64_t, int64_t>{256, 8}, {100, 32}, {65, 5}, {7, 7}, {896, 16}}) {
    const int64_t T = 2048 / E + 1, few = std::min<int64_t>(T - 1, 64);
    Guarded<float> logits({T, E}), bias({E}), weight({T, k}), weight_few({few, k});
    Guarded<int32_t> expert({T, k}), expert_few({few, k}), position({2, T, k}), source({2, T * k}), begin({2, E + 1});
    EffectCase c;
    c.array("logits", logits);
    c.array("bias", bias);
    c.array("weight", weight, {.relative = 2e-6, .absolute = 1e-9});
    c.array("weight few", weight_few, {.relative = 2e-6, .absolute = 1e-9});
    c.array("expert", expert);
    c.array("expert few", expert_few);
    c.array("position", position);
    c.array("source", source);
    c.array("begin", begin);
    c.fill = [&, E = E](Rng& rng) {  // apart by more than roundings, in no order
      for (int64_t t = 0; t < T; ++t)
        for (int64_t e = 0; e < E; ++e)
          logits[t * E + e] = 5 * static_cast<float>((e * 37 + t * 11) % (E + 1)) / static_cast<float>(E) - 2.5f;
      for (int64_t e = 0; e < E; ++e) bias[e] = static_cast<float>(rng() % 2);
    };
    c.call = [&, E = E, k = k](const Exec& ex, const EffectCase::At& at) {
      const auto route = [&](int64_t tokens, int64_t turn, const View<int32_t>& chosen, const View<float>& weights) {
        router(ex, {.logits = View<const float>(at(logits).data, {tokens, E}),
                    .bias = at(bias),
                    .k = k,
                    .scaling = 2.5f,
                    .expert = chosen,
                    .weight = weights,
                    .position = View<int32_t>(at(position).data + turn * T * k, {tokens, k}),
                    .source = View<int32_t>(at(source).data + turn * T * k, {tokens * k}),
                    .expert_begin = View<int32_t>(at(begin).data + turn * (E + 1), {E + 1})});
      };
      route(T, 0, at(expert), at(weight));
      route(few, 1, at(expert_few), at(weight_few));
    };
    c.run("router", router_variants());
    EXPECT_EQ(std::memcmp(&expert[0], &expert_few[0], few * k * sizeof(int32_t)), 0) << E;
    EXPECT_EQ(std::memcmp(&weight[0], &weight_few[0], few * k * sizeof(float)), 0) << E;
  }
}

}  // namespace
}  // namespace kdelta::test
