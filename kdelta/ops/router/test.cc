#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kdelta/ops/router/variants.h"
#include "tests/support/op_test.h"
#include "tests/support/spread.h"

namespace kdelta {
namespace {

using test::Guarded;
using test::TestExec;

class Router : public test::OpVariantTest {
 protected:
  Router() : OpVariantTest("router") {}
};
KDELTA_INSTANTIATE_VARIANTS(Router, router_variants());

struct Setting {
  int64_t T, E, k, groups = 1, topk_groups = 1;
  bool renormalize = true;
  float scaling = 1;
};

// Everything a call needs, poisoned where the op writes.
struct Call {
  Setting s;
  Guarded<float> logits, bias, weight;
  Guarded<int32_t> expert, position, source, begin;

  explicit Call(const Setting& set)
      : s(set),
        logits({s.T, s.E}),
        bias({s.E}),
        weight({s.T, s.k}),
        expert({s.T, s.k}),
        position({s.T, s.k}),
        source({s.T * s.k}),
        begin({s.E + 1}) {
    test::Rng rng(static_cast<uint64_t>(s.T * 1000 + s.E));
    fill_normal(logits, rng, 2.0f);
    fill_normal(bias, rng, 0.1f);
  }
  RouterArgs args() {
    return {.logits = logits,
            .bias = bias,
            .k = s.k,
            .groups = s.groups,
            .topk_groups = s.topk_groups,
            .renormalize = s.renormalize,
            .scaling = s.scaling,
            .live = {},
            .expert = expert,
            .weight = weight,
            .position = position,
            .source = source,
            .expert_begin = begin};
  }
  bool guards_intact() const {
    return weight.guards_intact() && expert.guards_intact() && position.guards_intact() && source.guards_intact() &&
           begin.guards_intact();
  }
};

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

// Choice values of one row in fp64, excluded groups at -infinity.
std::vector<double> choices(const Call& c, int64_t t) {
  const Setting& s = c.s;
  std::vector<double> v(static_cast<size_t>(s.E));
  for (int64_t e = 0; e < s.E; ++e) v[static_cast<size_t>(e)] = sigmoid(c.logits[t * s.E + e]) + c.bias[e];
  if (s.groups <= s.topk_groups) return v;
  const int64_t size = s.E / s.groups;
  std::vector<std::pair<double, int64_t>> score;
  for (int64_t g = 0; g < s.groups; ++g) {
    std::vector<double> member(v.begin() + g * size, v.begin() + (g + 1) * size);
    std::sort(member.rbegin(), member.rend());
    score.push_back({-(member[0] + (size > 1 ? member[1] : 0)), g});
  }
  std::sort(score.begin(), score.end());
  for (int64_t i = s.topk_groups; i < s.groups; ++i)
    std::fill_n(v.begin() + score[static_cast<size_t>(i)].second * size, size, -INFINITY);
  return v;
}

void expect_distinct_and_finite(const Call& c, int64_t t) {
  std::vector<int32_t> chosen(c.expert.data() + t * c.s.k, c.expert.data() + (t + 1) * c.s.k);
  std::sort(chosen.begin(), chosen.end());
  EXPECT_EQ(std::adjacent_find(chosen.begin(), chosen.end()), chosen.end()) << "row " << t;
  EXPECT_GE(chosen.front(), 0);
  EXPECT_LT(chosen.back(), c.s.E);
  for (int64_t i = 0; i < c.s.k; ++i) EXPECT_TRUE(std::isfinite(c.weight[t * c.s.k + i])) << "row " << t;
}

void expect_choices(const Call& c, int64_t t) {
  const Setting& s = c.s;
  expect_distinct_and_finite(c, t);  // near ties would hide an expert that is chosen twice
  std::vector<double> v = choices(c, t);
  std::vector<int64_t> order(v.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return v[static_cast<size_t>(a)] > v[static_cast<size_t>(b)]; });
  double sum = 0;
  for (int64_t i = 0; i < s.k; ++i) sum += sigmoid(c.logits[t * s.E + order[static_cast<size_t>(i)]]);
  for (int64_t i = 0; i < s.k; ++i) {
    const int64_t want = order[static_cast<size_t>(i)], got = c.expert[t * s.k + i];
    ASSERT_TRUE(got >= 0 && got < s.E);
    // Two choices closer than the rounding of the fp32 sigmoid may trade places.
    ASSERT_NEAR(v[static_cast<size_t>(got)], v[static_cast<size_t>(want)], 3e-7) << "row " << t << " choice " << i;
    double weight = sigmoid(c.logits[t * s.E + got]);
    if (s.renormalize && s.k > 1) weight /= sum;
    ASSERT_NEAR(c.weight[t * s.k + i], weight * s.scaling, 2e-6 * s.scaling);
  }
}

void expect_expert_order(const Call& c, int64_t live) {
  const Setting& s = c.s;
  std::vector<std::pair<int32_t, int64_t>> pairs;
  for (int64_t p = 0; p < live * s.k; ++p) pairs.push_back({c.expert[p], p});
  std::sort(pairs.begin(), pairs.end());
  for (size_t i = 0; i < pairs.size(); ++i) {
    ASSERT_EQ(c.position[pairs[i].second], static_cast<int32_t>(i));
    ASSERT_EQ(c.source[static_cast<int64_t>(i)], pairs[i].second / s.k);
  }
  for (int64_t e = 0; e <= s.E; ++e) {
    const auto below = std::count_if(pairs.begin(), pairs.end(), [&](const auto& p) { return p.first < e; });
    ASSERT_EQ(c.begin[e], below);
  }
}

TEST_P(Router, EqualsTheDefinitionAtEverySizeAroundTheVectorWidths) {
  for (int64_t E : {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 256, 896})
    for (int64_t k : {int64_t{1}, int64_t{2}, int64_t{8}, int64_t{16}, E})
      for (int64_t T : {1, 5, 33}) {
        if (k > E || (k > 64 && T > 5)) continue;
        Call c({.T = T, .E = E, .k = k, .renormalize = k % 2 == 0, .scaling = 2.446f});
        router(ex, c.args());
        for (int64_t t = 0; t < T; ++t) expect_choices(c, t);
        expect_expert_order(c, T);
        EXPECT_TRUE(c.guards_intact());
      }
}

TEST_P(Router, OnlyTheBestGroupsTakePart) {
  for (const Setting& s : {Setting{9, 64, 4, 8, 3}, Setting{9, 256, 8, 8, 4}, Setting{9, 12, 2, 6, 1},
                           Setting{9, 9, 2, 9, 2}, Setting{9, 100, 50, 4, 2}, Setting{9, 64, 6, 4, 4}}) {
    Call c(s);
    router(ex, c.args());
    for (int64_t t = 0; t < s.T; ++t) expect_choices(c, t);
    expect_expert_order(c, s.T);
  }
}

TEST_P(Router, TheNumbersOfTheSpecificationComeOut) {
  Call c({.T = 1, .E = 4, .k = 2});
  const float logits[] = {2, -1, 0.5f, 1}, bias[] = {0, 0.6f, 0, -0.3f};
  std::copy_n(logits, 4, c.logits.data());
  std::copy_n(bias, 4, c.bias.data());
  router(ex, c.args());
  EXPECT_EQ(c.expert[0], 0);
  EXPECT_EQ(c.expert[1], 1);
  EXPECT_NEAR(c.weight[0], 0.766084704, 1e-6);
  EXPECT_NEAR(c.weight[1], 0.233915296, 1e-6);
}

TEST_P(Router, TheBiasChoosesButNeverWeighs) {
  Call c({.T = 1, .E = 20, .k = 1});
  std::fill_n(c.logits.data(), 20, 0.0f);
  std::fill_n(c.bias.data(), 20, 0.0f);
  c.bias[13] = 5;
  router(ex, c.args());
  EXPECT_EQ(c.expert[0], 13);
  EXPECT_FLOAT_EQ(c.weight[0], 0.5f);  // one choice is not renormalised
}

TEST_P(Router, TiesGoToTheLowerIndex) {
  Call c({.T = 3, .E = 896, .k = 16});
  std::fill_n(c.bias.data(), 896, 0.0f);
  std::fill_n(c.logits.data(), 896, 0.25f);
  for (int64_t e = 0; e < 896; ++e) c.logits[896 + e] = e % 2 ? 50.0f : 60.0f;  // both saturate at 1
  std::fill_n(c.logits.data() + 2 * 896, 896, -1.0f);
  for (int64_t e : {100, 500, 895}) c.logits[2 * 896 + e] = 3;
  router(ex, c.args());
  for (int32_t i = 0; i < 16; ++i) {
    EXPECT_EQ(c.expert[i], i);
    EXPECT_EQ(c.expert[16 + i], i);
  }
  EXPECT_THAT(std::vector<int32_t>(&c.expert[32], &c.expert[37]), testing::ElementsAre(100, 500, 895, 0, 1));
}

TEST_P(Router, HostileRowsGetDistinctExpertsAndFiniteWeightsAndLeaveTheOthersAlone) {
  for (const Setting& s : {Setting{8, 896, 16}, Setting{8, 896, 16, 8, 3}}) {
    Call clean(s), c(s);
    const float inf = INFINITY;
    std::fill_n(c.logits.data() + 1 * s.E, s.E, NAN);
    c.logits[2 * s.E + 5] = NAN;
    c.logits[3 * s.E + 895] = inf;
    std::fill_n(c.logits.data() + 4 * s.E, s.E, 0.5f);
    std::fill_n(c.logits.data() + 5 * s.E, s.E, -inf);
    std::fill_n(c.logits.data() + 6 * s.E, s.E, inf);
    router(ex, clean.args());
    router(ex, c.args());
    for (int64_t t = 0; t < s.T; ++t) expect_distinct_and_finite(c, t);
    for (int64_t t : {int64_t{0}, s.T - 1}) {
      EXPECT_TRUE(test::equal_bits(&c.weight[t * s.k], &clean.weight[t * s.k], 16));
      EXPECT_TRUE(test::equal_bits(&c.expert[t * s.k], &clean.expert[t * s.k], 16));
    }
    expect_expert_order(c, s.T);
    for (int64_t i = 0; i < s.k; ++i) {
      EXPECT_EQ(c.weight[s.k + i], 0) << "NaN weighs nothing";
      EXPECT_NE(c.expert[2 * s.k + i], 5) << "NaN is the lowest score";
    }
  }
}

TEST_P(Router, ANaNBiasNeverWins) {
  Call c({.T = 2, .E = 40, .k = 39});
  c.bias[17] = NAN;
  router(ex, c.args());
  for (int64_t i = 0; i < 2 * 39; ++i) EXPECT_NE(c.expert[i], 17);
}

TEST_P(Router, RowsThatAreNotLiveChooseNothingWhateverTheyHold) {
  for (int32_t live : {0, 1, 5, 8}) {
    Call c({.T = 8, .E = 33, .k = 4});
    for (int64_t i = live * 33; i < 8 * 33; ++i) c.logits[i] = NAN;
    RouterArgs a = c.args();
    Guarded<int32_t> rows({1});
    rows[0] = live;
    a.live = rows.view();
    router(ex, a);
    for (int64_t t = 0; t < live; ++t) expect_choices(c, t);
    for (int64_t p = live * 4; p < 8 * 4; ++p) {
      EXPECT_EQ(c.expert[p], -1);
      EXPECT_EQ(c.weight[p], 0);
      EXPECT_EQ(c.position[p], -1);
      EXPECT_EQ(c.source[p], -1);
    }
    expect_expert_order(c, live);
    EXPECT_TRUE(c.guards_intact());
  }
}

TEST_P(Router, BitsOfARowDoNotDependOnItsCompany) {
  Call all({.T = 70, .E = 257, .k = 7}), alone({.T = 1, .E = 257, .k = 7});
  std::copy_n(all.bias.data(), 257, alone.bias.data());
  router(ex, all.args());
  for (int64_t t : {0, 15, 16, 69}) {
    std::copy_n(all.logits.data() + t * 257, 257, alone.logits.data());
    router(ex, alone.args());
    EXPECT_TRUE(test::equal_bits(alone.weight.data(), &all.weight[t * 7], 7));
    EXPECT_TRUE(test::equal_bits(alone.expert.data(), &all.expert[t * 7], 7));
  }
}

TEST_P(Router, NoRowsIsLegal) {
  Call c({.T = 0, .E = 5, .k = 2});
  router(ex, c.args());
  for (int64_t e = 0; e <= 5; ++e) EXPECT_EQ(c.begin[e], 0);
}

TEST_P(Router, StridedOutputsEqualDenseOnesAndTheGapsAreNotWritten) {
  Call dense({.T = 6, .E = 30, .k = 3}), strided({.T = 6, .E = 30, .k = 3});
  const test::Spread<float> weight({6, 3}, 5);
  const test::Spread<int32_t> expert({6, 3}, 7), position({6, 3}, 11);
  const int32_t live = 4;
  RouterArgs want = dense.args(), a = strided.args();
  want.live = a.live = View<const int32_t>(&live, {1});
  a.weight = weight, a.expert = expert, a.position = position;
  router(ex, want);
  router(ex, a);
  EXPECT_TRUE(weight.rows_equal(dense.weight) && weight.gaps_intact());
  EXPECT_TRUE(expert.rows_equal(dense.expert) && expert.gaps_intact());
  EXPECT_TRUE(position.rows_equal(dense.position) && position.gaps_intact());
  EXPECT_TRUE(same_bits(strided.source, dense.source) && same_bits(strided.begin, dense.begin));
}

TEST_P(Router, StridedLogitsEqualDenseOnes) {
  Call dense({.T = 5, .E = 30, .k = 3}), strided({.T = 5, .E = 30, .k = 3});
  const test::Spread<float> wide(dense.logits, 41);
  router(ex, dense.args());
  RouterArgs a = strided.args();
  a.logits = wide;
  router(ex, a);
  EXPECT_TRUE(same_bits(dense.weight, strided.weight));
  EXPECT_TRUE(same_bits(dense.expert, strided.expert));
}

TEST_P(Router, RowsPast32BitsOfElementsAreFound) {
  Call near({.T = 2, .E = 30, .k = 3}), far({.T = 2, .E = 30, .k = 3});
  constexpr int64_t kStride = (int64_t{1} << 32) + 5;
  const test::Far<float> logits(near.logits, kStride);
  router(ex, near.args());
  RouterArgs a = far.args();
  a.logits = logits;
  router(ex, a);
  EXPECT_TRUE(same_bits(near.expert, far.expert));
  EXPECT_TRUE(same_bits(near.weight, far.weight));
}

// Ranks that hold experts choose and weigh alike; each sorts the pairs of its own, all of which have one place.
TEST_P(Router, RanksThatHoldPartsOfTheExpertsGiveEveryPairOnePlace) {
  constexpr int64_t T = 37, E = 48, k = 5, kRanks = 6, kHeld = E / kRanks;
  Call all({.T = T, .E = E, .k = k});
  const int32_t live = 30;
  RouterArgs whole = all.args();
  whole.live = View<const int32_t>(&live, {1});
  router(ex, whole);
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    Call part({.T = T, .E = E, .k = k});
    Guarded<int32_t> begin({kHeld + 1});
    RouterArgs a = part.args();
    a.live = whole.live;
    a.expert_begin = begin;
    a.first = rank * kHeld;
    a.held = kHeld;
    router(ex, a);
    EXPECT_TRUE(same_bits(part.expert, all.expert) && same_bits(part.weight, all.weight));
    EXPECT_TRUE(part.guards_intact() && begin.guards_intact());
    const int32_t before = all.begin[rank * kHeld];
    for (int64_t e = 0; e <= kHeld; ++e) EXPECT_EQ(begin[e], all.begin[rank * kHeld + e] - before);
    for (int64_t i = 0; i < T * k; ++i) {
      const bool held = all.expert[i] >= 0 && all.expert[i] / kHeld == rank;
      EXPECT_EQ(part.position[i], held ? all.position[i] - before : -1) << i;
      EXPECT_EQ(part.source[i], i < begin[kHeld] ? all.source[before + i] : -1) << i;
    }
  }
}

TEST(RouterRefuses, WrongArgumentsByNameBeforeAnythingIsWritten) {
  TestExec ex;
  Call c({.T = 2, .E = 12, .k = 3});
  auto with = [&](auto change) {
    RouterArgs a = c.args();
    change(a);
    return test::error_of([&] { router(ex, a); });
  };
  Guarded<float> short_bias({11});
  EXPECT_EQ(with([](RouterArgs& a) { a.k = 0; }), "router: k: 0, expected 1..12");
  EXPECT_EQ(with([](RouterArgs& a) { a.k = 13; }), "router: k: 13, expected 1..12");
  EXPECT_EQ(with([](RouterArgs& a) { a.groups = 5; }), "router: groups: 5, expected a divisor of the 12 experts");
  EXPECT_EQ(with([](RouterArgs& a) { a.groups = 6; }), "router: k: 3, expected 1..2");
  EXPECT_EQ(with([](RouterArgs& a) { a.topk_groups = 2; }), "router: topk_groups: 2, expected 1..1");
  EXPECT_EQ(with([](RouterArgs& a) { a.scaling = NAN; }), "router: scaling: nan, expected a finite number");
  EXPECT_EQ(with([&](RouterArgs& a) { a.bias = short_bias; }), "router: bias: shape [11], expected [12]");
  EXPECT_EQ(with([&](RouterArgs& a) { a.expert_begin.shape = {12}; }),
            "router: expert_begin: shape [12], expected [13]");
  EXPECT_EQ(with([&](RouterArgs& a) { a.source.shape = {5}; }), "router: source: shape [5], expected [6]");
  EXPECT_EQ(with([&](RouterArgs& a) { a.logits.stride[1] = 2; }),
            "router: logits: stride 2 on the last axis, expected 1");
  EXPECT_EQ(with([](RouterArgs& a) { a.held = 13; }), "router: held: 13, expected 0..12");
  EXPECT_EQ(with([](RouterArgs& a) { a.first = 1; }), "router: first: 1, expected 0..0");
  EXPECT_EQ(with([](RouterArgs& a) { a.held = 4, a.first = 9; }), "router: first: 9, expected 0..8");
  EXPECT_EQ(with([](RouterArgs& a) { a.held = 4; }), "router: expert_begin: shape [13], expected [5]");
  EXPECT_TRUE(c.weight.untouched());
}

TEST(RouterChoice, TakesTheBestRowOfTheProcessor) {
  RouterDesc d{.target = {.isa = IsaLevel::amx}};
  EXPECT_STREQ(choose("router", router_variants(), d, Options{}).name, "avx512");
  d.target.isa = IsaLevel::avx2;
  EXPECT_STREQ(choose("router", router_variants(), d, Options{}).name, "avx2");
  d.target.isa = IsaLevel::portable;
  EXPECT_STREQ(choose("router", router_variants(), d, Options{}).name, "portable");
}

TEST(RouterPlanning, TouchesNothing) {
  TestExec ex;
  Call c({.T = 2, .E = 12, .k = 3});
  router(ex.planning(), c.args());
  EXPECT_TRUE(c.weight.untouched());
}

}  // namespace
}  // namespace kdelta
