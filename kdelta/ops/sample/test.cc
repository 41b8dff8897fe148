// The contract of sample on single calls; test_draws.cc holds the tests of the distribution.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "kdelta/ops/sample/philox.h"
#include "kdelta/ops/sample/variants.h"
#include "tests/support/op_test.h"
#include "tests/support/spread.h"

namespace kdelta::test {
int64_t allocations();  // of the whole program so far; test_allocations.cc
}

namespace kdelta {
namespace {

using test::Guarded;
using test::TestExec;

class Sample : public test::OpVariantTest {
 protected:
  Sample() : OpVariantTest("sample") {}
  SampleResult one(const std::vector<float>& logits, const SampleRow& row) {
    SampleResult result;
    const int64_t n = static_cast<int64_t>(logits.size());
    // No data behind the row: the guard shows a read past the end as NaN.
    Guarded<float> guarded({1, n});
    std::memcpy(guarded.data(), logits.data(), logits.size() * sizeof(float));
    sample(ex, {.logits = guarded, .rows = {&row, 1}, .results = {&result, 1}});
    return result;
  }
  int32_t token(const std::vector<float>& logits, const SampleRow& row) { return one(logits, row).token; }
};
KDELTA_INSTANTIATE_VARIANTS(Sample, sample_variants());

SampleRow with(const SamplingParams& params) {
  SampleRow row;
  row.params = params;
  return row;
}
const SampleRow kGreedy = with({.temperature = 0});

std::vector<float> random_logits(int64_t n, uint64_t seed, float scale = 3) {
  test::Rng rng(seed);
  std::normal_distribution<float> d(0, scale);
  std::vector<float> x(static_cast<size_t>(n));
  for (float& v : x) v = d(rng);
  return x;
}

TEST(SamplePhilox, MatchesThePublishedVectors) {
  using Block = std::array<uint32_t, 4>;
  EXPECT_EQ(philox4x32_10({0, 0, 0, 0}, {0, 0}), (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t f = 0xffffffff;
  EXPECT_EQ(philox4x32_10({f, f, f, f}, {f, f}), (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32_10({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(SamplePhilox, UniformsLieBelowOneAndUseSeedAndIndexWhole) {
  double sum = 0;
  for (uint64_t i = 0; i < 10000; ++i) {
    const double u = philox_uniform(7, i);
    ASSERT_TRUE(u >= 0 && u < 1);
    sum += u;
  }
  EXPECT_NEAR(sum / 10000, 0.5, 0.01);
  EXPECT_NE(philox_uniform(1, 5), philox_uniform(1 + (uint64_t{1} << 32), 5));
  EXPECT_NE(philox_uniform(1, 5), philox_uniform(1, 5 + (uint64_t{1} << 32)));
}

TEST_P(Sample, GreedyTakesTheLargestLogitAndTheLowerIdOnATie) {
  for (int64_t n : {1, 2, 3, 15, 16, 17, 33, 4095, 4096, 4097, 8200, 163840}) {
    for (int64_t at : {int64_t{0}, n / 2, n - 1}) {
      std::vector<float> x(static_cast<size_t>(n), -2.0f);
      x[static_cast<size_t>(at)] = -1;
      x[static_cast<size_t>(n - 1)] = -1;
      EXPECT_EQ(token(x, kGreedy), at) << "of " << n;
    }
    EXPECT_EQ(token(std::vector<float>(static_cast<size_t>(n), 0.5f), kGreedy), 0);
  }
}

TEST_P(Sample, ARowWithANaNOrAnInfinityHasNoTokenAtAnySetting) {
  for (const SamplingParams& p :
       {SamplingParams{.temperature = 0}, SamplingParams{}, SamplingParams{.temperature = 1e-6f},
        SamplingParams{.top_k = 1}, SamplingParams{.top_p = 0.9f}, SamplingParams{.min_p = 1},
        SamplingParams{.repetition_penalty = 1.3f}})
    for (float bad : {std::nanf(""), -std::nanf(""), INFINITY})
      for (size_t at : {size_t{0}, size_t{777}, size_t{4999}}) {
        std::vector<float> x = random_logits(5000, 1);
        x[at] = bad;
        SampleRow row = with(p);
        row.top_logprobs = 3;
        const SampleResult r = one(x, row);
        EXPECT_EQ(r.token, -1) << bad << " at " << at;
        EXPECT_TRUE(r.top.empty());
        EXPECT_EQ(r.logprob, 0);
        row.banned = std::span<const int32_t>();
      }
}

TEST_P(Sample, ABanDoesNotHideANaN) {
  std::vector<float> x = random_logits(100, 1);
  x[7] = NAN;
  const int32_t banned[] = {7};
  SampleRow row = kGreedy;
  row.banned = banned;
  EXPECT_EQ(token(x, row), -1);
}

TEST_P(Sample, NoUsableLogitHasNoToken) {
  for (const SamplingParams& p :
       {SamplingParams{.temperature = 0}, SamplingParams{}, SamplingParams{.top_k = 5, .top_p = 0.5f}}) {
    EXPECT_EQ(token(std::vector<float>(100, NAN), with(p)), -1);
    EXPECT_EQ(token(std::vector<float>(100, -INFINITY), with(p)), -1);
    const int32_t banned[] = {0, 1, 2};
    SampleRow row = with(p);
    row.banned = banned;
    EXPECT_EQ(token({1, 2, 3}, row), -1);
    EXPECT_EQ(token({1, 2, 3, -INFINITY}, row), -1);
    EXPECT_EQ(token({1, 2, 3, -50}, row), 3);
  }
}

TEST_P(Sample, MinusInfinityIsNeverChosenAndTheOnlyFiniteLogitAlwaysIs) {
  std::vector<float> x(5000, -INFINITY);
  x[4321] = -1e30f;
  for (const SamplingParams& p :
       {SamplingParams{.temperature = 0}, SamplingParams{.temperature = 2}, SamplingParams{.top_k = 40},
        SamplingParams{.top_p = 0.1f}, SamplingParams{.min_p = 0.5f}})
    EXPECT_EQ(token(x, with(p)), 4321);
}

TEST_P(Sample, ATinyTemperatureActsLikeGreedy) {
  for (float t : {1e-6f, 1e-30f, 1e-40f}) {
    const std::vector<float> x = random_logits(6000, 3, 10);
    for (uint64_t seed = 0; seed < 5; ++seed)
      EXPECT_EQ(token(x, with({.temperature = t, .seed = seed})), token(x, kGreedy)) << t;
    EXPECT_EQ(token({-3e38f, 3e38f, 2.9e38f}, with({.temperature = t})), 1);
    EXPECT_EQ(token({-3e38f, 3e38f, 2.9e38f}, with({.temperature = t, .top_p = 0.9f, .min_p = 0.1f})), 1);
  }
}

TEST_P(Sample, SettingsThatLeaveOneTokenLeaveTheBest) {
  const std::vector<float> x = random_logits(9000, 4);
  const int32_t best = token(x, kGreedy);
  for (uint64_t seed = 0; seed < 10; ++seed) {
    EXPECT_EQ(token(x, with({.temperature = 3, .top_k = 1, .seed = seed})), best);
    EXPECT_EQ(token(x, with({.temperature = 3, .top_p = 0, .seed = seed})), best);
    EXPECT_EQ(token(x, with({.temperature = 3, .min_p = 1, .seed = seed})), best);
  }
}

TEST_P(Sample, SettingsThatAreOffChangeNoDraw) {
  const std::vector<float> x = random_logits(500, 5);
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const int32_t want = token(x, with({.seed = seed}));
    EXPECT_EQ(token(x, with({.top_k = 0, .seed = seed})), want);
    EXPECT_EQ(token(x, with({.top_k = -1, .seed = seed})), want);
    EXPECT_EQ(token(x, with({.top_k = 500, .seed = seed})), want);
    EXPECT_EQ(token(x, with({.top_k = 1 << 30, .seed = seed})), want);
    EXPECT_EQ(token(x, with({.top_p = 1, .min_p = 0, .seed = seed})), want);
  }
}

TEST_P(Sample, TiesAtTheCutGoToTheLowerIds) {
  const std::vector<float> equal(300, 1.0f);
  std::vector<float> ramp = equal;
  ramp[299] = 2;  // the best comes last: the cut among the equals is still by id
  for (uint64_t seed = 0; seed < 60; ++seed) {
    EXPECT_LT(token(equal, with({.top_k = 7, .seed = seed})), 7);
    EXPECT_LT(token(equal, with({.top_p = 0.25f, .seed = seed})), 75);
    const int32_t t = token(ramp, with({.top_k = 3, .seed = seed}));
    EXPECT_TRUE(t < 2 || t == 299) << t;
  }
  EXPECT_LT(token(equal, with({.min_p = 1, .seed = 1})), 300);
}

TEST_P(Sample, BiasAddsAndMinusInfinityBans) {
  const std::vector<float> x{1, 2, 3, 4};
  SampleRow row = kGreedy;
  const LogitBias up[] = {{0, 2.5f}, {0, 1.0f}}, ban[] = {{3, -INFINITY}, {3, 100}};
  row.bias = up;
  EXPECT_EQ(token(x, row), 0) << "two entries of one token add up";
  row.bias = ban;
  EXPECT_EQ(token(x, row), 2) << "nothing lifts a ban";
  const LogitBias huge[] = {{1, 3e38f}};
  row.bias = huge;
  EXPECT_EQ(token({3e38f, 2e38f}, row), 1) << "an overflow stays finite";
  row.params = {.temperature = 1};
  EXPECT_EQ(token({3e38f, 2e38f}, row), 1);
}

TEST_P(Sample, OnlyTokensOfTheMaskAreChosenAndWithoutAnyNone) {
  const int64_t n = 77;  // the last word of the mask has 13 bits
  const std::vector<float> x = random_logits(n, 12);
  test::Rng rng(13);
  for (int round = 0; round < 200; ++round) {
    SampleRow row = with({.temperature = round % 2 == 0 ? 0.0f : 2.0f, .seed = rng()});
    std::vector<uint32_t> bits(3, 0);
    float best = -INFINITY;
    for (uint64_t i = rng() % 5; i > 0; --i) {
      const auto id = rng() % static_cast<uint64_t>(n);
      bits[id / 32] |= uint32_t{1} << id % 32;
      best = std::max(best, x[id]);
    }
    row.allowed = bits;
    const int32_t t = token(x, row);
    if (best == -INFINITY) {
      EXPECT_EQ(t, -1);
    } else {
      ASSERT_TRUE(t >= 0 && t < n);
      EXPECT_TRUE((bits[static_cast<size_t>(t) / 32] >> t % 32 & 1) != 0) << t;
      EXPECT_TRUE(round % 2 != 0 || x[static_cast<size_t>(t)] == best);
    }
  }
}

TEST_P(Sample, RepetitionPenaltyDividesPositiveAndMultipliesNegativeLogitsOncePerToken) {
  SampleRow row = with({.temperature = 0, .repetition_penalty = 2});
  const int32_t prompt[] = {0, 0, 0}, output[] = {0};
  row.prompt = prompt;
  row.output = output;
  EXPECT_EQ(token({4, 1.9f}, row), 0);
  EXPECT_EQ(token({4, 2.1f}, row), 1);
  EXPECT_EQ(token({-1, -2.1f}, row), 0);
  EXPECT_EQ(token({-1, -1.9f}, row), 1);
  row.prompt = {};
  EXPECT_EQ(token({4, 2.1f}, row), 1) << "output tokens count too";
  row.output = {};
  EXPECT_EQ(token({4, 3.9f}, row), 0);
}

TEST_P(Sample, PresenceCountsOnceFrequencyEveryTimeAndNeitherThePrompt) {
  const int32_t seen[] = {0, 0, 0};
  SampleRow row = with({.temperature = 0, .presence_penalty = 1});
  row.output = seen;
  EXPECT_EQ(token({4, 2.9f}, row), 0);
  EXPECT_EQ(token({4, 3.1f}, row), 1);
  row.params = {.temperature = 0, .frequency_penalty = 0.5f};
  EXPECT_EQ(token({4, 2.4f}, row), 0);
  EXPECT_EQ(token({4, 2.6f}, row), 1);
  row.params = {.temperature = 0, .presence_penalty = 5, .frequency_penalty = 5};
  row.output = {};
  row.prompt = seen;
  EXPECT_EQ(token({4, 3.9f}, row), 0);
  row.params = {.temperature = 0, .presence_penalty = -2};
  row.output = std::span(seen, 1);
  EXPECT_EQ(token({4, 5.9f}, row), 0) << "a negative penalty rewards";
}

TEST_P(Sample, LogprobsAreThoseOfTheRawLogits) {
  for (int64_t n : {1, 5, 40, 5000}) {
    const std::vector<float> x = random_logits(n, 8);
    double total = 0;
    for (float v : x) total += std::exp(static_cast<double>(v));
    std::vector<std::pair<float, int32_t>> order;
    for (int32_t i = 0; i < n; ++i) order.push_back({-x[static_cast<size_t>(i)], i});
    std::sort(order.begin(), order.end());
    SampleRow row = with({.temperature = 0.3f, .top_k = 1, .repetition_penalty = 1.5f});
    const LogitBias bias[] = {{static_cast<int32_t>(n - 1), 90}};
    row.bias = bias;
    for (int32_t top : {0, 1, 20, 1 << 20}) {
      row.top_logprobs = top;
      const SampleResult r = one(x, row);
      ASSERT_EQ(r.token, n - 1);
      EXPECT_NEAR(r.logprob, x[static_cast<size_t>(n - 1)] - std::log(total), 2e-5);
      ASSERT_EQ(static_cast<int64_t>(r.top.size()), std::min<int64_t>(top, n));
      for (size_t i = 0; i < r.top.size(); ++i) {
        EXPECT_EQ(r.top[i].token, order[i].second);
        EXPECT_NEAR(r.top[i].logprob, -order[i].first - std::log(total), 2e-5);
      }
    }
    row.top_logprobs = -1;
    EXPECT_EQ(one(x, row).logprob, 0);
  }
}

TEST_P(Sample, TopLogprobsAreFiniteAndTiesGoToTheLowerId) {
  SampleRow row = kGreedy;
  row.top_logprobs = 4;
  const SampleResult r = one({-INFINITY, 1, 1, -INFINITY, 1}, row);
  ASSERT_EQ(r.top.size(), 3u) << "a token of probability 0 is not reported";
  EXPECT_EQ(r.top[0].token, 1);
  EXPECT_EQ(r.top[1].token, 2);
  EXPECT_EQ(r.top[2].token, 4);
  for (const TokenLogprob& t : r.top) EXPECT_NEAR(t.logprob, -std::log(3.0), 1e-6);
}

// M rows of different settings, some unusable.
struct Crowd {
  static constexpr int64_t M = 9, n = 4500, stride = n + 13;
  std::vector<float> logits = random_logits(M * stride, 11);
  std::vector<int32_t> history{1, 2, 3, 2, 1};
  std::vector<SampleRow> rows;
  std::vector<SampleResult> results = std::vector<SampleResult>(M);
  Crowd() {
    for (int64_t m = 0; m < M; ++m) {
      SampleRow row;
      row.params = {.temperature = m % 3 ? 0.9f : 0.0f,
                    .top_k = static_cast<int32_t>(m % 4 * 30),
                    .top_p = m % 2 ? 0.9f : 1.0f,
                    .repetition_penalty = m % 5 ? 1.0f : 1.2f,
                    .seed = static_cast<uint64_t>(m)};
      row.output = std::span(history).first(static_cast<size_t>(m % 5));
      row.top_logprobs = m % 2 ? 2 : -1;
      rows.push_back(row);
      for (int64_t i = n; i < stride; ++i) logits[static_cast<size_t>(m * stride + i)] = NAN;
    }
    logits[4 * stride + 100] = NAN;
  }
  View<const float> view(int64_t first, int64_t count) const {
    return View<const float>(logits.data() + first * stride, {count, n}, {stride, 1});
  }
};

TEST_P(Sample, ADrawDependsNeitherOnItsNeighboursNorOnTheOrderOfTheRowsNorOnTheThreads) {
  Crowd c;
  const std::vector<float> before = c.logits;
  for (int threads : {1, 2, 16}) {
    TestExec other(threads);
    force(other);
    std::vector<SampleResult> all(Crowd::M), alone(1);
    sample(other, {.logits = c.view(0, Crowd::M), .rows = c.rows, .results = all});
    for (int64_t m = 0; m < Crowd::M; ++m) {
      sample(ex,
             {.logits = c.view(m, 1), .rows = std::span(c.rows).subspan(static_cast<size_t>(m), 1), .results = alone});
      EXPECT_EQ(alone[0].token, all[static_cast<size_t>(m)].token) << "row " << m;
      EXPECT_EQ(alone[0].logprob, all[static_cast<size_t>(m)].logprob);
      EXPECT_EQ(all[static_cast<size_t>(m)].token == -1, m == 4);
    }
  }
  EXPECT_TRUE(test::equal_bits(before.data(), c.logits.data(), std::ssize(before))) << "logits are never written";
}

TEST_P(Sample, RowsPast32BitsOfElementsAreFound) {
  constexpr int64_t kStride = (int64_t{1} << 32) + 3;
  const test::Far<float> logits({2, 9}, kStride);
  *logits.view().at(1, 5) = 1;
  const std::vector<SampleRow> rows(2, kGreedy);
  std::vector<SampleResult> results(2);
  sample(ex, {.logits = logits, .rows = rows, .results = results});
  EXPECT_EQ(results[0].token, 0);
  EXPECT_EQ(results[1].token, 5);
}

TEST_P(Sample, StaleResultsAreReplaced) {
  SampleResult stale;
  stale.token = 77;
  stale.logprob = 5;
  stale.top = {{1, 2}, {3, 4}};
  const std::vector<float> x(10, NAN);
  const SampleRow row = kGreedy;
  sample(ex, {.logits = View<const float>(x.data(), {1, 10}), .rows = {&row, 1}, .results = {&stale, 1}});
  EXPECT_EQ(stale.token, -1);
  EXPECT_EQ(stale.logprob, 0);
  EXPECT_TRUE(stale.top.empty());
}

TEST_P(Sample, NothingIsAllocatedInSteadyState) {
  if (GetParam() == "reference") return;  // the definition is not for speed
  // Chosen by instruction set: a forced choice writes down the names it passed.
  ex.options().force.clear();
  ex.options().isa = parse_isa(GetParam());
  Crowd c;
  sample(ex, {.logits = c.view(0, Crowd::M), .rows = c.rows, .results = c.results});
  const int64_t before = test::allocations();
  for (int i = 0; i < 3; ++i) sample(ex, {.logits = c.view(0, Crowd::M), .rows = c.rows, .results = c.results});
  EXPECT_EQ(test::allocations() - before, 0);
}

TEST_P(Sample, NoRowsIsLegal) {
  sample(ex, {.logits = View<const float>(nullptr, {0, 10}), .rows = {}, .results = {}});
}

TEST(SampleRefuses, ParametersOutOfRangeByRowAndField) {
  TestExec ex;
  Guarded<float> logits({2, 10});
  for (int64_t i = 0; i < 20; ++i) logits[i] = 0;
  std::vector<SampleResult> results(2);
  auto error = [&](auto change) {
    std::vector<SampleRow> rows(2);
    change(rows[1]);
    return test::error_of([&] { sample(ex, {.logits = logits, .rows = rows, .results = results}); });
  };
  EXPECT_EQ(error([](SampleRow& r) { r.params.temperature = -1; }),
            "sample: row 1: temperature: -1, expected >= 0 and finite");
  EXPECT_EQ(error([](SampleRow& r) { r.params.temperature = INFINITY; }),
            "sample: row 1: temperature: inf, expected >= 0 and finite");
  EXPECT_EQ(error([](SampleRow& r) { r.params.top_p = 1.5f; }), "sample: row 1: top_p: 1.5, expected 0..1");
  EXPECT_EQ(error([](SampleRow& r) { r.params.min_p = NAN; }), "sample: row 1: min_p: nan, expected 0..1");
  EXPECT_EQ(error([](SampleRow& r) { r.params.repetition_penalty = 0; }),
            "sample: row 1: repetition_penalty: 0, expected > 0 and finite");
  EXPECT_EQ(error([](SampleRow& r) { r.params.presence_penalty = NAN; }),
            "sample: row 1: presence_penalty: nan, expected a finite number");
  const LogitBias outside[] = {{10, 0}}, infinite[] = {{1, INFINITY}};
  EXPECT_EQ(error([&](SampleRow& r) { r.bias = outside; }), "sample: row 1: bias[0].token: 10, expected 0..9");
  EXPECT_EQ(error([&](SampleRow& r) { r.bias = infinite; }),
            "sample: row 1: bias[0].bias: inf, expected a finite number or -infinity");
  const int32_t ids[] = {3, -1};
  EXPECT_EQ(error([&](SampleRow& r) { r.banned = ids; }), "sample: row 1: banned[1]: -1, expected 0..9");
  EXPECT_EQ(error([&](SampleRow& r) { r.output = ids, r.params.presence_penalty = 1; }),
            "sample: row 1: output[1]: -1, expected 0..9");
  EXPECT_EQ(error([&](SampleRow& r) { r.prompt = ids, r.params.repetition_penalty = 2; }),
            "sample: row 1: prompt[1]: -1, expected 0..9");
  const std::vector<uint32_t> words(2);
  EXPECT_EQ(error([&](SampleRow& r) { r.allowed = words; }), "sample: row 1: allowed: 2 words, expected 1 or none");
  EXPECT_EQ(error([](SampleRow&) {}), "no error");
  EXPECT_THAT(test::error_of([] { check_sampling_params({.top_p = -1}); }), testing::HasSubstr("top_p"));
}

TEST(SampleRefuses, ShapesByName) {
  TestExec ex;
  Guarded<float> logits({2, 10});
  std::vector<SampleRow> rows(2);
  std::vector<SampleResult> results(2);
  auto error = [&](auto change) {
    SampleArgs a{.logits = logits, .rows = rows, .results = results};
    change(a);
    return test::error_of([&] { sample(ex, a); });
  };
  EXPECT_EQ(error([&](SampleArgs& a) { a.rows = a.rows.first(1); }), "sample: rows: 1 of them, expected 2");
  EXPECT_EQ(error([&](SampleArgs& a) { a.results = a.results.first(1); }), "sample: results: 1 of them, expected 2");
  EXPECT_EQ(error([&](SampleArgs& a) { a.logits.stride[1] = 2; }),
            "sample: logits: stride 2 on the last axis, expected 1");
  EXPECT_EQ(error([&](SampleArgs& a) { a.logits.shape = {20}; }),
            "sample: logits: shape [20], expected [M, vocabulary]");
}

TEST(SamplePlanning, TouchesNothing) {
  TestExec ex;
  Guarded<float> logits({1, 10});
  const SampleRow row = kGreedy;
  SampleResult result;
  result.token = 5;
  sample(ex.planning(), {.logits = logits, .rows = {&row, 1}, .results = {&result, 1}});
  EXPECT_EQ(result.token, 5);
}

}  // namespace
}  // namespace kdelta
