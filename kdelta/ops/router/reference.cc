// The definition of router. The sigmoid is fp64 rounded once to the fp32 score that the contract compares; everything
// that is compared is fp32, so that ties are the vendor's ties.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kdelta/ops/router/expert_order.h"
#include "kdelta/ops/router/variants.h"

namespace kdelta {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();

float lowest_if_nan(float x) {
  return std::isnan(x) ? kLowest : x;
}

// Index of the largest value that is not taken yet, the lower index on a tie; NaN is already lowest.
int64_t best_free(const float* value, const uint8_t* taken, int64_t n) {
  int64_t best = -1;
  for (int64_t i = 0; i < n; ++i)
    if (!taken[i] && (best < 0 || value[i] > value[best])) best = i;
  return best;
}

void exclude_groups(const RouterArgs& a, const float* choice, float* group_score, uint8_t* group_kept, uint8_t* taken) {
  const int64_t size = a.logits.dim(1) / a.groups;
  for (int64_t g = 0; g < a.groups; ++g) {
    const float* member = choice + g * size;
    float first = kLowest, second = size > 1 ? kLowest : 0;
    for (int64_t i = 0; i < size; ++i) {
      if (member[i] > first) {
        if (size > 1) second = first;
        first = member[i];
      } else if (member[i] > second && size > 1) {
        second = member[i];
      }
    }
    group_score[g] = lowest_if_nan(first + second);
    group_kept[g] = 0;
  }
  for (int64_t i = 0; i < a.topk_groups; ++i) group_kept[best_free(group_score, group_kept, a.groups)] = 1;
  for (int64_t e = 0; e < a.logits.dim(1); ++e) taken[e] = group_kept[e / size] ? 0 : 1;
}

struct Work {
  float *score, *choice, *group_score;  // [E], [E], [groups]
  int32_t* cursor;                      // [E]
  uint8_t *taken, *group_kept;          // [E], [groups]
};

void row(const RouterArgs& a, int64_t t, const Work& w) {
  const int64_t E = a.logits.dim(1);
  for (int64_t e = 0; e < E; ++e) {
    w.score[e] = static_cast<float>(1 / (1 + std::exp(-static_cast<double>(*a.logits.at(t, e)))));
    w.choice[e] = lowest_if_nan(w.score[e] + a.bias.data[e]);
    w.taken[e] = 0;
  }
  if (a.groups > a.topk_groups) exclude_groups(a, w.choice, w.group_score, w.group_kept, w.taken);
  double sum = 0;
  for (int64_t i = 0; i < a.k; ++i) {
    const int64_t e = best_free(w.choice, w.taken, E);
    w.taken[e] = 1;
    *a.expert.at(t, i) = static_cast<int32_t>(e);
    *a.weight.at(t, i) = std::isnan(w.score[e]) ? 0 : w.score[e];
    sum += static_cast<double>(*a.weight.at(t, i));
  }
  const double factor = (a.renormalize && a.k > 1 ? 1 / (sum + 1e-20) : 1.0) * static_cast<double>(a.scaling);
  for (int64_t i = 0; i < a.k; ++i)
    *a.weight.at(t, i) = static_cast<float>(static_cast<double>(*a.weight.at(t, i)) * factor);
}

}  // namespace

int64_t router_reference_scratch(const RouterDesc& d) {
  return d.experts * 13 + d.groups * 5;
}

void router_reference(const Exec&, const RouterArgs& a, const RouterDesc& d, void* scratch) {
  Work w{};
  w.score = static_cast<float*>(scratch);
  w.choice = w.score + d.experts;
  w.group_score = w.choice + d.experts;
  w.cursor = reinterpret_cast<int32_t*>(w.group_score + d.groups);
  w.taken = reinterpret_cast<uint8_t*>(w.cursor + d.experts);
  w.group_kept = w.taken + d.experts;
  const int64_t live = live_rows(a);
  for (int64_t t = 0; t < live; ++t) row(a, t, w);
  sort_by_expert(a, live, w.cursor);
}

}  // namespace kdelta
