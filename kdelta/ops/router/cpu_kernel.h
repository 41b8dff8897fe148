// The vector kernel of router over any V of simd.h. A row: sigmoid and choice value of every expert, then the k best in
// one pass with a running threshold. Almost every block of experts is dismissed by one comparison of its maximum with
// the k-th best.
#pragma once

#include "kdelta/ops/common/cpu/parallel.h"
#include "kdelta/ops/common/cpu/simd_math.h"
#include "kdelta/ops/router/expert_order.h"
#include "kdelta/ops/router/variants.h"

namespace kdelta {

// Scratch of one thread.
template <class V>
struct RouterWork {
  float *score, *choice;  // [E]
  float* best;            // [k] choice values, falling
  int32_t* index;         // [k]
  float* group_score;     // [groups]
  uint8_t* group_kept;    // [groups]
  int64_t count;          // entries of best
};

template <class V>
KDELTA_INLINE void router_scores(const float* logits, const float* bias, int64_t E, const RouterWork<V>& w) {
  constexpr int64_t L = V::kLanes;
  const V lowest = V::set1(-__builtin_inff());
  int64_t e = 0;
  for (; e < E; e += L) {
    const int64_t n = E - e < L ? E - e : L;
    const V s = simd::sigmoid(n == L ? V::load(logits + e) : V::load_n(logits + e, n));
    const V t = s + (n == L ? V::load(bias + e) : V::load_n(bias + e, n));
    const V chosen = V::select_gt(t, lowest, t, lowest);  // NaN compares false and becomes the lowest
    if (n == L) {
      s.store(w.score + e);
      chosen.store(w.choice + e);
    } else {
      s.store_n(w.score + e, n);
      chosen.store_n(w.choice + e, n);
    }
  }
}

// Inserts behind every entry that is at least as good: experts come by rising index, so ties keep the lower one in
// front.
template <class V>
KDELTA_INLINE void router_insert(RouterWork<V>& w, int64_t k, float value, int64_t e) {
  int64_t i = w.count < k ? w.count++ : k - 1;
  for (; i > 0 && w.best[i - 1] < value; --i) {
    w.best[i] = w.best[i - 1];
    w.index[i] = w.index[i - 1];
  }
  w.best[i] = value;
  w.index[i] = static_cast<int32_t>(e);
}

template <class V>
void router_scan(RouterWork<V>& w, int64_t k, int64_t begin, int64_t end) {
  constexpr int64_t L = V::kLanes;
  int64_t e = begin;
  for (; e < end && w.count < k; ++e) router_insert(w, k, w.choice[e], e);
  for (; e + 2 * L <= end; e += 2 * L) {
    if (!(V::max(V::load(w.choice + e), V::load(w.choice + e + L)).max_lane() > w.best[k - 1])) continue;
    for (int64_t i = e; i < e + 2 * L; ++i)
      if (w.choice[i] > w.best[k - 1]) router_insert(w, k, w.choice[i], i);
  }
  for (; e < end; ++e)
    if (w.choice[e] > w.best[k - 1]) router_insert(w, k, w.choice[e], e);
}

// Marks the topk_groups best groups by the sum of their two largest choices.
template <class V>
void router_keep_groups(const RouterArgs& a, RouterWork<V>& w, int64_t size) {
  const float lowest = -__builtin_inff();
  for (int64_t g = 0; g < a.groups; ++g) {
    float first = lowest, second = lowest;
    for (int64_t i = g * size; i < (g + 1) * size; ++i) {
      const float v = w.choice[i];
      second = v > first ? first : (v > second ? v : second);
      first = v > first ? v : first;
    }
    const float sum = size > 1 ? first + second : first;
    w.group_score[g] = sum > lowest ? sum : lowest;
    w.group_kept[g] = 0;
  }
  for (int64_t i = 0; i < a.topk_groups; ++i) {
    int64_t best = -1;
    for (int64_t g = 0; g < a.groups; ++g)
      if (!w.group_kept[g] && (best < 0 || w.group_score[g] > w.group_score[best])) best = g;
    w.group_kept[best] = 1;
  }
}

template <class V>
void router_weights(const RouterArgs& a, int64_t t, const RouterWork<V>& w) {
  float sum = 0;
  for (int64_t i = 0; i < a.k; ++i) {
    const float s = w.score[w.index[i]];
    const float weight = s >= 0 ? s : 0.0f;  // NaN weighs nothing
    *a.expert.at(t, i) = w.index[i];
    *a.weight.at(t, i) = weight;
    sum += weight;
  }
  for (int64_t i = 0; i < a.k; ++i) {
    float* weight = a.weight.at(t, i);
    if (a.renormalize && a.k > 1) *weight /= sum + 1e-20f;
    *weight *= a.scaling;
  }
}

template <class V>
void router_row(const RouterArgs& a, int64_t t, RouterWork<V>& w) {
  const int64_t E = a.logits.dim(1), size = E / a.groups;
  router_scores(a.logits.at(t), a.bias.data, E, w);
  w.count = 0;
  if (a.groups > a.topk_groups) {
    router_keep_groups(a, w, size);
    for (int64_t g = 0; g < a.groups; ++g)
      if (w.group_kept[g]) router_scan(w, a.k, g * size, (g + 1) * size);
  } else {
    router_scan(w, a.k, 0, E);
  }
  router_weights(a, t, w);
}

template <class V>
void router_cpu(const Exec& ex, const RouterArgs& a, const RouterDesc& d, void* scratch) {
  const int64_t live = live_rows(a), bytes = router_thread_bytes(d);
  // 16 rows of 896 experts are about 10 us: more than a hand-out, little enough to balance.
  parallel_for_ranked(ex, live, 16, [&](int rank, int64_t begin, int64_t end) {
    float* base = reinterpret_cast<float*>(static_cast<char*>(scratch) + rank * bytes);
    RouterWork<V> w{};
    w.score = base;
    w.choice = w.score + d.experts;
    w.best = w.choice + d.experts;
    w.index = reinterpret_cast<int32_t*>(w.best + d.choices);
    w.group_score = w.best + 2 * d.choices;
    w.group_kept = reinterpret_cast<uint8_t*>(w.group_score + d.groups);
    for (int64_t t = begin; t < end; ++t) router_row(a, t, w);
  });
  sort_by_expert(a, live, static_cast<int32_t*>(scratch));
}

}  // namespace kdelta
