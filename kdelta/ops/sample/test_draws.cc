// The distribution of sample: every draw is the inverse of the defined distribution at a known uniform, and many draws
// pass a chi-square test. Seeds are fixed, so a result is either always right or always wrong.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kdelta/ops/sample/philox.h"
#include "kdelta/ops/sample/variants.h"
#include "tests/support/op_test.h"

namespace kdelta {
namespace {

using test::TestExec;

class SampleDraws : public test::OpVariantTest {
 protected:
  SampleDraws() : OpVariantTest("sample") {}
  int32_t token(const std::vector<float>& x, const SampleRow& row) {
    SampleResult result;
    sample(ex, {.logits = View<const float>(x.data(), {1, static_cast<int64_t>(x.size())}),
                .rows = {&row, 1},
                .results = {&result, 1}});
    return result.token;
  }
};
KDELTA_INSTANTIATE_VARIANTS(SampleDraws, sample_variants());

std::vector<float> random_logits(int64_t n, uint64_t seed, float scale) {
  test::Rng rng(seed);
  std::normal_distribution<float> d(0, scale);
  std::vector<float> x(static_cast<size_t>(n));
  for (float& v : x) v = d(rng);
  return x;
}

// Probabilities by id, from the contract's sentence alone.
std::vector<double> distribution(const std::vector<float>& logits, const SampleRow& row) {
  const SamplingParams& p = row.params;
  std::vector<std::pair<double, size_t>> order;
  for (size_t i = 0; i < logits.size(); ++i) {
    double v = logits[i];
    for (const LogitBias& b : row.bias)
      if (static_cast<size_t>(b.token) == i) v += b.bias;
    if (std::count(row.banned.begin(), row.banned.end(), i)) v = -INFINITY;
    const double n = static_cast<double>(std::count(row.output.begin(), row.output.end(), i));
    if (n > 0 || std::count(row.prompt.begin(), row.prompt.end(), i))
      v = v > 0 ? v / p.repetition_penalty : v * p.repetition_penalty;
    v -= n * p.frequency_penalty + (n > 0) * p.presence_penalty;
    order.push_back({-v / p.temperature, i});
  }
  std::sort(order.begin(), order.end());
  const double best = order[0].first;
  if (p.top_k > 0) order.resize(std::min(order.size(), static_cast<size_t>(p.top_k)));
  double total = 0, have = 0;
  for (const auto& o : order) total += std::exp(best - o.first);
  std::vector<double> out(logits.size());
  for (const auto& o : order) {
    const double probability = std::exp(best - o.first);
    if (have > 0 && have >= p.top_p * total && p.top_p < 1) break;
    have += probability;
    if (probability >= p.min_p) out[o.second] = probability;
  }
  double kept = 0;
  for (double v : out) kept += v;
  for (double& v : out) v /= kept;
  return out;
}

// The draw must be the token whose interval of the cumulated distribution holds u; fp32 sums may move a border by
// `slack`.
void expect_inverse(const std::vector<double>& p, int32_t token, double u, double slack) {
  ASSERT_GE(token, 0);
  double before = 0;
  for (int32_t i = 0; i < token; ++i) before += p[static_cast<size_t>(i)];
  ASSERT_GT(p[static_cast<size_t>(token)], 0) << "token " << token << " is outside the kept set";
  ASSERT_GE(u, before - slack) << "token " << token;
  ASSERT_LE(u, before + p[static_cast<size_t>(token)] + slack) << "token " << token;
}

TEST_P(SampleDraws, EveryDrawInvertsTheDefinedDistribution) {
  test::Rng rng(1);
  auto pick = [&](auto... values) {
    const float v[] = {static_cast<float>(values)...};
    return v[rng() % (sizeof...(values))];
  };
  const bool slow = GetParam() == "reference";
  for (int64_t n : {1, 2, 7, 16, 100, 4095, 4096, 4097, 8192, 9001})
    for (int trial = 0; trial < (slow ? 10 : 40); ++trial) {
      SampleRow row;
      row.params = {.temperature = pick(0.3, 0.7, 1, 1.5, 5),
                    .top_k = static_cast<int32_t>(pick(0, 0, 1, 2, 40, 1000, 3000)),
                    .top_p = pick(1, 1, 0.999, 0.95, 0.5, 0.05),
                    .min_p = pick(0, 0, 0.01, 0.3),
                    .repetition_penalty = pick(1, 1, 1.3, 0.8),
                    .presence_penalty = pick(0, 0.5),
                    .frequency_penalty = pick(0, -0.2),
                    .seed = rng()};
      std::vector<int32_t> history(trial % 7);
      for (int32_t& id : history) id = static_cast<int32_t>(rng() % static_cast<uint64_t>(n));
      const int32_t banned[] = {static_cast<int32_t>(n / 2)};
      const LogitBias bias[] = {{static_cast<int32_t>(n - 1), 1.5f}};
      row.output = history;
      row.prompt = std::span(history).first(history.size() / 2);
      if (n > 1 && trial % 3 == 0) row.banned = banned, row.bias = bias;
      const std::vector<float> x = random_logits(n, static_cast<uint64_t>(trial), pick(0.1, 2, 6));
      expect_inverse(distribution(x, row), token(x, row), philox_uniform(row.params.seed, history.size()), 1e-5);
      if (HasFatalFailure()) FAIL() << "n " << n << " trial " << trial;
    }
}

// Pearson's statistic of `draws` tokens with the same logits; draw i has i output tokens, which no penalty reads.
TEST_P(SampleDraws, ManyDrawsPassAChiSquareTestAtEverySetting) {
  const int draws = GetParam() == "reference" ? 3000 : 20000;
  const std::vector<int32_t> output(static_cast<size_t>(draws), 0);
  const std::vector<float> x = random_logits(32, 77, 1);
  for (const SamplingParams& p :
       {SamplingParams{}, SamplingParams{.temperature = 0.5f}, SamplingParams{.temperature = 2},
        SamplingParams{.top_k = 8}, SamplingParams{.top_p = 0.7f}, SamplingParams{.min_p = 0.2f},
        SamplingParams{.temperature = 1.3f, .top_k = 20, .top_p = 0.9f, .min_p = 0.1f}}) {
    SampleRow row;
    row.params = p;
    row.params.seed = 1234;
    const std::vector<double> want = distribution(x, row);
    std::vector<double> got(32);
    for (int i = 0; i < draws; ++i) {
      row.output = std::span(output).first(static_cast<size_t>(i));
      ++got[static_cast<size_t>(token(x, row))];
    }
    double statistic = 0;
    int cells = 0;
    for (size_t i = 0; i < 32; ++i) {
      if (want[i] == 0) {
        EXPECT_EQ(got[i], 0) << "token " << i << " was cut";
        continue;
      }
      const double expected = want[i] * draws;
      statistic += (got[i] - expected) * (got[i] - expected) / expected;
      ++cells;
    }
    // Mean f, variance 2f for f degrees of freedom: five deviations.
    const double f = cells - 1;
    EXPECT_LT(statistic, f + 5 * std::sqrt(2 * f))
        << p.temperature << " " << p.top_k << " " << p.top_p << " " << p.min_p;
  }
}

TEST_P(SampleDraws, TheSeedAndTheDrawIndexFixTheToken) {
  const std::vector<float> x = random_logits(1000, 5, 1);
  const std::vector<int32_t> output(20, 3);
  int changes = 0;
  for (size_t i = 1; i < 20; ++i) {
    SampleRow row;
    row.params.seed = 99;
    row.output = std::span(output).first(i);
    const int32_t first = token(x, row);
    EXPECT_EQ(token(x, row), first);
    row.params.seed = 100;
    changes += token(x, row) != first;
  }
  EXPECT_GT(changes, 15) << "another seed draws other tokens";
}

TEST_P(SampleDraws, AFlatVocabularyOfReleaseSizeIsCutExactly) {
  if (GetParam() == "reference") return;  // the sort of the definition takes a second here
  const std::vector<float> x = random_logits(163840, 6, 0.01f);
  for (const SamplingParams& p :
       {SamplingParams{.top_p = 0.95f}, SamplingParams{.top_k = 100000}, SamplingParams{.top_k = 50},
        SamplingParams{.min_p = 0.97f}, SamplingParams{.top_k = 90000, .top_p = 0.5f}}) {
    SampleRow row;
    row.params = p;
    row.params.seed = 3;
    expect_inverse(distribution(x, row), token(x, row), philox_uniform(3, 0), 1e-5);
  }
}

TEST_P(SampleDraws, RisingLogitsOfReleaseSizeAreCutExactly) {
  if (GetParam() == "reference") return;
  std::vector<float> x(163840);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i) * 1e-3f;  // every token beats all before it
  SampleRow row;
  row.params = {.top_k = 40, .seed = 8};
  expect_inverse(distribution(x, row), token(x, row), philox_uniform(8, 0), 1e-5);
}

}  // namespace
}  // namespace kdelta
