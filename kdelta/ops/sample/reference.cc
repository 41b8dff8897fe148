// The definition of sample, in fp64: sort everything, then cut, then draw over ascending ids.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kdelta/ops/sample/philox.h"
#include "kdelta/ops/sample/variants.h"

namespace kdelta {
namespace {

bool usable(const float* logits, int64_t vocabulary) {
  bool any = false;
  for (int64_t i = 0; i < vocabulary; ++i) {
    if (std::isnan(logits[i]) || (std::isinf(logits[i]) && logits[i] > 0)) return false;
    any = any || std::isfinite(logits[i]);
  }
  return any;
}

// Processed logits are fp32, rounded after the bias and after the penalties; what was finite stays so.
float rounded(double x) {
  constexpr double largest = std::numeric_limits<float>::max();
  return static_cast<float>(x == -INFINITY ? x : std::clamp(x, -largest, largest));
}

std::vector<float> processed(const float* logits, int64_t vocabulary, const SampleRow& row) {
  std::vector<float> x(logits, logits + vocabulary);
  for (const LogitBias& b : row.bias) {
    float& v = x[static_cast<size_t>(b.token)];
    v = rounded(static_cast<double>(v) + static_cast<double>(b.bias));
  }
  for (int32_t id : row.banned) x[static_cast<size_t>(id)] = -INFINITY;
  for (size_t i = 0; i < x.size() && !row.allowed.empty(); ++i)
    if ((row.allowed[i / 32] >> i % 32 & 1) == 0) x[i] = -INFINITY;
  const SamplingParams& p = row.params;
  std::vector<int64_t> count(x.size(), -1);  // -1: not seen; else how often in the output
  if (p.repetition_penalty != 1)
    for (int32_t id : row.prompt) count[static_cast<size_t>(id)] = 0;
  if (p.repetition_penalty != 1 || p.presence_penalty != 0 || p.frequency_penalty != 0)
    for (int32_t id : row.output)
      count[static_cast<size_t>(id)] = std::max<int64_t>(count[static_cast<size_t>(id)], 0) + 1;
  for (size_t i = 0; i < x.size(); ++i) {
    if (count[i] < 0) continue;
    double v = static_cast<double>(x[i]);
    v = v > 0 ? v / static_cast<double>(p.repetition_penalty) : v * static_cast<double>(p.repetition_penalty);
    if (count[i] > 0)
      v -= static_cast<double>(p.frequency_penalty) * static_cast<double>(count[i]) +
           static_cast<double>(p.presence_penalty);
    x[i] = rounded(v);
  }
  return x;
}

// Ids by falling logit, the lower id first on a tie.
std::vector<int32_t> ranking(const std::vector<float>& x) {
  std::vector<int32_t> order(x.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return x[static_cast<size_t>(a)] > x[static_cast<size_t>(b)]; });
  return order;
}

int32_t draw(const std::vector<float>& x, const SampleRow& row) {
  std::vector<int32_t> kept = ranking(x);
  const double best = static_cast<double>(x[static_cast<size_t>(kept[0])]);
  if (!std::isfinite(best)) return -1;
  const SamplingParams& p = row.params;
  if (p.temperature == 0) return kept[0];
  auto probability = [&](int32_t id) {
    return std::exp((static_cast<double>(x[static_cast<size_t>(id)]) - best) / static_cast<double>(p.temperature));
  };
  auto sum = [&] {
    return std::accumulate(kept.begin(), kept.end(), 0.0, [&](double s, int32_t id) { return s + probability(id); });
  };
  if (p.top_k > 0 && static_cast<size_t>(p.top_k) < kept.size()) kept.resize(static_cast<size_t>(p.top_k));
  if (p.top_p < 1) {
    const double wanted = static_cast<double>(p.top_p) * sum();
    size_t n = 0;
    for (double have = 0; n < kept.size() && (n == 0 || have < wanted); ++n) have += probability(kept[n]);
    kept.resize(n);
  }
  while (probability(kept.back()) < static_cast<double>(p.min_p)) kept.pop_back();
  std::sort(kept.begin(), kept.end());
  const double target = philox_uniform(p.seed, row.output.size()) * sum();
  double have = 0;
  int32_t last = -1;
  for (int32_t id : kept) {
    if (probability(id) == 0) continue;
    have += probability(id);
    last = id;
    if (have > target) break;
  }
  return last;
}

void report(const float* logits, int64_t vocabulary, const SampleRow& row, SampleResult& result) {
  const std::vector<float> x(logits, logits + vocabulary);
  const std::vector<int32_t> order = ranking(x);
  auto logit = [&](int32_t id) { return static_cast<double>(x[static_cast<size_t>(id)]); };
  double total = 0;
  for (int32_t id : order) total += std::exp(logit(id) - logit(order[0]));
  auto logprob = [&](int32_t id) { return static_cast<float>(logit(id) - logit(order[0]) - std::log(total)); };
  result.logprob = logprob(result.token);
  const auto n = std::min(order.size(), static_cast<size_t>(row.top_logprobs));
  for (size_t i = 0; i < n && std::isfinite(logit(order[i])); ++i) result.top.push_back({order[i], logprob(order[i])});
}

}  // namespace

void sample_reference(const Exec&, const SampleArgs& a, const SampleDesc& d, void*) {
  for (int64_t m = 0; m < d.rows; ++m) {
    const SampleRow& row = a.rows[static_cast<size_t>(m)];
    SampleResult& result = a.results[static_cast<size_t>(m)];
    result.token = -1;
    result.logprob = 0;
    result.top.clear();
    if (!usable(a.logits.at(m), d.vocabulary)) continue;
    result.token = draw(processed(a.logits.at(m), d.vocabulary, row), row);
    if (result.token >= 0 && row.top_logprobs >= 0) report(a.logits.at(m), d.vocabulary, row, result);
  }
}

}  // namespace kdelta
