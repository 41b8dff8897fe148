// Expert choice of a mixture-of-experts layer, sigmoid scores with a selection bias:
//   s = sigmoid(logit);  t = s + bias (for choosing only);  groups as configured;  the k largest t, ties to the lower
//   index w = s[chosen];  w /= sum(w) + 1e-20 (renormalize, k > 1);  w *= scaling
// and the permutation that sorts the T*k (token, choice) pairs by expert (stable), which grouped_linear and moe_combine
// use. Letters: T tokens, E experts, k choices, P = T*k pairs. All fp32. Source: DeepSeek-V3 noaux_tc, as in the Kimi
// models.
#pragma once

#include "kdelta/core/exec.h"

namespace kdelta {

struct RouterArgs {
  View<const float> logits;  // [T, E]
  View<const float> bias;    // [E]
  int64_t k = 0;             // 1..experts of the kept groups
  int64_t groups = 1;        // E % groups == 0; a group's score is the sum of its two largest t
  int64_t topk_groups = 1;   // groups kept, 1..groups; experts of the others are excluded (when groups > topk_groups)
  bool renormalize = true;
  float scaling = 1;
  View<const int32_t> live;    // [1] or null: rows t >= live[0] choose nothing (expert -1, weight 0, position -1)
  View<int32_t> expert;        // [T, k] chosen experts, best first
  View<float> weight;          // [T, k]
  View<int32_t> position;      // [T, k] place of the pair in expert order, 0..P-1; -1: its expert is another rank's
  View<int32_t> source;        // [P] token of each place in expert order; places past the live pairs: -1
  View<int32_t> expert_begin;  // [held+1] places of expert first + i: [i], [i+1]
  // The experts that get places, of a rank that holds some of them. Choices and weights know nothing of it.
  int64_t first = 0;
  int64_t held = 0;  // 0: all E
};

// Whatever the logits hold, live rows get k distinct experts in [0, E) and finite weights: NaN counts as the lowest
// score and as weight 0; other rows are not affected. Throws Error(invalid_argument) naming the argument.
void router(const Exec& ex, const RouterArgs& args);

Cost router_cost(const RouterArgs& args);

}  // namespace kdelta
