#include "kdelta/ops/sample/work.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kdelta {
namespace {

constexpr float kLargest = std::numeric_limits<float>::max();

// A finite result stays finite: an overflow must not turn into a ban or into an unusable row.
float settle(double x) {
  if (std::isinf(x) && x < 0) return -std::numeric_limits<float>::infinity();
  return static_cast<float>(std::clamp(x, -static_cast<double>(kLargest), static_cast<double>(kLargest)));
}

bool better(const Candidate& a, const Candidate& b) {
  return a.value > b.value || (a.value == b.value && a.id < b.id);
}

int64_t round_up(int64_t bytes) {
  return (bytes + 63) / 64 * 64;
}
int64_t blocks(const SampleDesc& d) {
  return (d.vocabulary + kSampleBlock - 1) / kSampleBlock;
}
int64_t row_bytes(const SampleDesc& d) {
  return round_up(4 * d.vocabulary) + round_up(8 * d.vocabulary) + round_up(8 * blocks(d));
}

// A word of bits at a time: most are all set, or none is.
void ban_others(std::span<const uint32_t> allowed, float* x, int64_t vocabulary) {
  for (size_t w = 0; w < allowed.size(); ++w) {
    float* const first = x + 32 * w;
    const int64_t n = std::min<int64_t>(32, vocabulary - 32 * static_cast<int64_t>(w));
    if (allowed[w] == 0xFFFFFFFFu) continue;
    for (int64_t i = 0; i < n; ++i)
      if ((allowed[w] >> i & 1) == 0) first[i] = -std::numeric_limits<float>::infinity();
  }
}

void penalise(const SampleRow& row, float* x, int64_t vocabulary, int32_t* count) {
  const SamplingParams& p = row.params;
  // -1: not seen, n >= 0: seen, n times in the output.
  std::fill(count, count + vocabulary, -1);
  if (p.repetition_penalty != 1)
    for (int32_t id : row.prompt) count[id] = 0;
  for (int32_t id : row.output) count[id] = std::max(count[id], 0) + 1;
  for (int64_t i = 0; i < vocabulary; ++i) {
    if (count[i] < 0) continue;
    double v = static_cast<double>(x[i]);
    v = v > 0 ? v / static_cast<double>(p.repetition_penalty) : v * static_cast<double>(p.repetition_penalty);
    if (count[i] > 0)
      v -= static_cast<double>(p.frequency_penalty) * count[i] + static_cast<double>(p.presence_penalty);
    x[i] = settle(v);
  }
}

}  // namespace

int64_t rows_in_flight(const SampleDesc& d) {
  return std::min<int64_t>(d.target.threads, d.rows);
}
int64_t sample_cpu_scratch(const SampleDesc& d) {
  return rows_in_flight(d) * row_bytes(d);
}

SampleWork sample_work(const SampleDesc& d, void* scratch, int64_t index) {
  char* base = static_cast<char*>(scratch) + index * row_bytes(d);
  SampleWork w{};
  w.x = reinterpret_cast<float*>(base);
  base += round_up(4 * d.vocabulary);
  w.candidates = reinterpret_cast<Candidate*>(base);
  w.count = reinterpret_cast<int32_t*>(base);
  w.block_sum = reinterpret_cast<double*>(base + round_up(8 * d.vocabulary));
  return w;
}

bool penalises(const SamplingParams& p) {
  return p.repetition_penalty != 1 || p.presence_penalty != 0 || p.frequency_penalty != 0;
}

bool is_processed(const SampleRow& row) {
  return !row.bias.empty() || !row.banned.empty() || !row.allowed.empty() || penalises(row.params);
}

void process_logits(const SampleRow& row, float* x, int64_t vocabulary, int32_t* count) {
  for (const LogitBias& b : row.bias)
    x[b.token] = settle(static_cast<double>(x[b.token]) + static_cast<double>(b.bias));
  for (int32_t id : row.banned) x[id] = -std::numeric_limits<float>::infinity();
  ban_others(row.allowed, x, vocabulary);
  if (penalises(row.params)) penalise(row, x, vocabulary, count);
}

Candidate select_best(Candidate* c, int64_t n, int64_t k) {
  std::nth_element(c, c + (k - 1), c + n, better);
  return c[k - 1];
}

void reset(SampleResult& result) {
  result.token = -1;
  result.logprob = 0;
  result.top.clear();
}

void report_logprobs(Candidate* c, int64_t n, float chosen, float best, double total, SampleResult& result) {
  const double log_total = std::log(total);
  auto logprob = [&](float value) {
    return static_cast<float>(static_cast<double>(value) - static_cast<double>(best) - log_total);
  };
  result.logprob = logprob(chosen);
  std::sort(c, c + n, better);
  for (int64_t i = 0; i < n; ++i) result.top.push_back({c[i].id, logprob(c[i].value)});
}

// Halves the range that holds the answer: quickselect whose rank is a mass. Linear in n.
Candidate select_mass(Candidate* c, int64_t n, float best, float temperature, double wanted) {
  while (n > 1) {
    const int64_t half = n / 2;
    std::nth_element(c, c + (half - 1), c + n, better);
    double mass = 0;
    for (int64_t i = 0; i < half; ++i)
      mass +=
          std::exp((static_cast<double>(c[i].value) - static_cast<double>(best)) / static_cast<double>(temperature));
    if (mass >= wanted) {
      n = half;
    } else {
      wanted -= mass;
      c += half;
      n -= half;
    }
  }
  return c[0];
}

float value_of_probability(float best, float temperature, double p) {
  if (p <= 0) return -std::numeric_limits<float>::infinity();
  const double exact = static_cast<double>(best) + static_cast<double>(temperature) * std::log(p);
  if (exact < -static_cast<double>(kLargest)) return -kLargest;
  const float v = static_cast<float>(exact);
  return static_cast<double>(v) < exact ? std::nextafter(v, kLargest) : v;
}

}  // namespace kdelta
