// The vector kernel of sample over any V of simd.h. Top-k, top-p and min-p each keep a prefix of the order "larger
// logit, then lower id", so together they are one cutoff: find it among few candidates, drop what is below it in one
// pass, then draw over ascending ids. No full sort at any setting; notes.md bounds the candidates.
#pragma once

#include "kdelta/ops/common/cpu/parallel.h"
#include "kdelta/ops/common/cpu/simd_math.h"
#include "kdelta/ops/sample/philox.h"
#include "kdelta/ops/sample/work.h"

namespace kdelta {

struct SampleMax {
  float value = -__builtin_inff();
  int64_t block = 0;   // the first block that holds it
  bool usable = true;  // no NaN and no +infinity anywhere
};

template <class V>
KDELTA_INLINE V sample_load(const float* p, int64_t n, float beyond) {
  if (n >= V::kLanes) return V::load(p);
  float tmp[V::kLanes];
  for (int i = 0; i < V::kLanes; ++i) tmp[i] = i < n ? p[i] : beyond;
  return V::load(tmp);
}

template <class V>
SampleMax sample_max(const float* x, int64_t n) {
  constexpr int64_t L = V::kLanes;
  const V floor = V::set1(-3.402823466e38f);
  SampleMax max;
  V bad = V::zero();
  for (int64_t begin = 0; begin < n; begin += kSampleBlock) {
    const int64_t end = begin + kSampleBlock < n ? begin + kSampleBlock : n;
    V m = V::set1(-__builtin_inff());
    for (int64_t i = begin; i < end; i += L) {
      const V v = sample_load<V>(x + i, end - i, -__builtin_inff());
      m = V::max(m, v);
      // NaN and +infinity times zero are NaN; max keeps a NaN that is its second operand.
      bad = V::fma(V::max(floor, v), V::zero(), bad);
    }
    const float block_max = m.max_lane();
    if (block_max > max.value) {
      max.value = block_max;
      max.block = begin;
    }
  }
  float lanes[L];
  bad.store(lanes);
  for (float lane : lanes) max.usable = max.usable && lane == 0.0f;
  return max;
}

// The lowest id of the maximum.
KDELTA_INLINE int32_t sample_first(const float* x, const SampleMax& max) {
  int64_t i = max.block;
  while (x[i] != max.value) ++i;
  return static_cast<int32_t>(i);
}

// exp((x - best) / temperature). The difference comes first and is divided, not multiplied by an inverse: a temperature
// of 1e-40 must act like 0 and not become infinity times zero.
template <class V>
KDELTA_INLINE V sample_exp(V x, V best, V temperature) {
  return simd::exp((x - best) / temperature);
}

template <class V>
double sample_sums(const float* x, int64_t n, float best, float temperature, double* block_sum) {
  constexpr int64_t L = V::kLanes;
  const V b = V::set1(best), t = V::set1(temperature);
  double total = 0;
  for (int64_t begin = 0; begin < n; begin += kSampleBlock) {
    const int64_t end = begin + kSampleBlock < n ? begin + kSampleBlock : n;
    V s0 = V::zero(), s1 = V::zero();
    for (int64_t i = begin; i < end; i += 2 * L) {
      s0 = s0 + sample_exp(sample_load<V>(x + i, end - i, -__builtin_inff()), b, t);
      s1 = s1 + sample_exp(sample_load<V>(x + i + L, end - i - L, -__builtin_inff()), b, t);
    }
    block_sum[begin / kSampleBlock] = static_cast<double>((s0 + s1).sum());
    total += block_sum[begin / kSampleBlock];
  }
  return total;
}

// Tokens with x > floor, by rising id; when `capacity` are found the k best stay and the floor rises to the worst of
// them. Returns how many lie in c; at least the k best of the row are among them.
template <class V>
int64_t sample_collect(const float* x, int64_t n, float floor, int64_t k, int64_t capacity, Candidate* c) {
  constexpr int64_t L = 2 * V::kLanes;
  int64_t count = 0;
  for (int64_t i = 0; i < n; i += L) {
    const int64_t end = i + L < n ? i + L : n;
    if (end - i == L && !(V::max(V::load(x + i), V::load(x + i + V::kLanes)).max_lane() > floor)) continue;
    for (int64_t j = i; j < end; ++j) {
      if (!(x[j] > floor)) continue;
      c[count++] = {x[j], static_cast<int32_t>(j)};
      if (count < capacity || j + 1 == n) continue;
      floor = select_best(c, count, k).value;
      count = k;
    }
  }
  return count;
}

// The k best of the row, unordered, at the front of c; returns how many there are (fewer when the rest is banned).
template <class V>
int64_t sample_top(const float* x, int64_t n, int64_t k, Candidate* c) {
  const int64_t capacity = 2 * k > n ? n : (2 * k < kSampleBlock ? (kSampleBlock < n ? kSampleBlock : n) : 2 * k);
  const int64_t count = sample_collect<V>(x, n, -__builtin_inff(), k, capacity, c);
  if (count <= k) return count;
  select_best(c, count, k);
  return k;
}

template <class V>
Cutoff sample_cutoff(const SamplingParams& p, const SampleWork& w, int64_t n, float best) {
  Candidate* c = w.candidates;
  Candidate worst{-__builtin_inff(), 0};
  int64_t count = 0;
  const bool top_k = p.top_k > 0 && p.top_k < n;
  if (top_k) {
    count = sample_top<V>(w.x, n, p.top_k, c);
    worst = select_best(c, count, count);
  }
  if (p.top_p < 1) {
    double total = 0;
    if (top_k) {
      for (int64_t i = 0; i < count; ++i)
        total += __builtin_exp((static_cast<double>(c[i].value) - static_cast<double>(best)) /
                               static_cast<double>(p.temperature));
    } else {
      total = sample_sums<V>(w.x, n, best, p.temperature, w.block_sum);
      // What is rarer than an even share of the part to drop cannot be needed to reach top_p, even all of it together.
      const double share = (1 - static_cast<double>(p.top_p)) * total / static_cast<double>(n) * 0.999;
      const float least = value_of_probability(best, p.temperature, share);
      count = sample_collect<V>(w.x, n, __builtin_nextafterf(least, -__builtin_inff()), n, n, c);
    }
    worst = select_mass(c, count, best, p.temperature, static_cast<double>(p.top_p) * total);
  }
  const float least = value_of_probability(best, p.temperature, static_cast<double>(p.min_p));
  if (least > worst.value) return {least, static_cast<int32_t>(n - 1)};
  return {worst.value, worst.id};
}

template <class V>
void sample_drop(float* x, int64_t n, const Cutoff& cut) {
  constexpr int64_t L = V::kLanes;
  const V value = V::set1(cut.value), out = V::set1(-__builtin_inff());
  auto pass = [&](int64_t begin, int64_t end, bool tie_stays) {
    int64_t i = begin;
    for (; i + L <= end; i += L) {
      const V v = V::load(x + i);
      (tie_stays ? V::select_gt(value, v, out, v) : V::select_gt(v, value, v, out)).store(x + i);
    }
    for (; i < end; ++i)
      if (!(tie_stays ? x[i] >= cut.value : x[i] > cut.value)) x[i] = -__builtin_inff();
  };
  pass(0, cut.id + 1, true);
  pass(cut.id + 1, n, false);
}

// The first token, by rising id, whose cumulated probability passes u times the total.
template <class V>
int32_t sample_draw(const float* x, int64_t n, float best, float temperature, double u, double* block_sum) {
  constexpr int64_t L = V::kLanes;
  const double target = u * sample_sums<V>(x, n, best, temperature, block_sum);
  double before = 0;
  int64_t block = 0;
  for (int64_t b = 0, blocks = (n + kSampleBlock - 1) / kSampleBlock; b < blocks; ++b) {
    if (block_sum[b] == 0) continue;
    block = b;
    if (before + block_sum[b] > target) break;
    before += block_sum[b];
  }
  const int64_t begin = block * kSampleBlock, end = begin + kSampleBlock < n ? begin + kSampleBlock : n;
  alignas(64) float p[kSampleBlock + L];
  const V b = V::set1(best), t = V::set1(temperature);
  for (int64_t i = begin; i < end; i += L)
    sample_exp(sample_load<V>(x + i, end - i, -__builtin_inff()), b, t).store(p + (i - begin));
  int64_t last = begin;
  for (int64_t i = begin; i < end; ++i) {
    if (p[i - begin] == 0) continue;
    last = i;
    before += static_cast<double>(p[i - begin]);
    if (before > target) break;
  }
  return static_cast<int32_t>(last);
}

template <class V>
int32_t sample_choose(const float* logits, const SampleRow& row, SampleMax max, const SampleWork& w, int64_t n) {
  const SamplingParams& p = row.params;
  const float* x = logits;
  if (is_processed(row) || p.temperature != 0) {
    __builtin_memcpy(w.x, logits, static_cast<size_t>(n) * sizeof(float));
    x = w.x;
  }
  if (is_processed(row)) {
    process_logits(row, w.x, n, w.count);
    max = sample_max<V>(w.x, n);
  }
  if (max.value == -__builtin_inff()) return -1;
  if (p.temperature == 0) return sample_first(x, max);
  const Cutoff cut = sample_cutoff<V>(p, w, n, max.value);
  if (!cut.everything()) sample_drop<V>(w.x, n, cut);
  return sample_draw<V>(w.x, n, max.value, p.temperature, philox_uniform(p.seed, row.output.size()), w.block_sum);
}

// Log-probabilities of the raw logits: the chosen token's and the n best.
template <class V>
void sample_report(const float* logits, const SampleRow& row, float best, const SampleWork& w, int64_t n,
                   SampleResult& result) {
  const double total = sample_sums<V>(logits, n, best, 1.0f, w.block_sum);
  const int64_t wanted = row.top_logprobs < n ? row.top_logprobs : n;
  const int64_t count = wanted > 0 ? sample_top<V>(logits, n, wanted, w.candidates) : 0;
  report_logprobs(w.candidates, count, logits[result.token], best, total, result);
}

template <class V>
void sample_cpu(const Exec& ex, const SampleArgs& a, const SampleDesc& d, void* scratch) {
  parallel_for_ranked(ex, d.rows, 1, [&](int rank, int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m) {
      const SampleWork w = sample_work(d, scratch, d.rows <= d.target.threads ? m : rank);
      const SampleRow& row = a.rows[static_cast<size_t>(m)];
      SampleResult& result = a.results[static_cast<size_t>(m)];
      reset(result);
      const float* logits = a.logits.at(m);
      const SampleMax max = sample_max<V>(logits, d.vocabulary);
      if (!max.usable || max.value == -__builtin_inff()) continue;
      result.token = sample_choose<V>(logits, row, max, w, d.vocabulary);
      if (result.token >= 0 && row.top_logprobs >= 0) sample_report<V>(logits, row, max.value, w, d.vocabulary, result);
    }
  });
}

}  // namespace kdelta
