#include "kdelta/ops/router/expert_order.h"

#include <algorithm>

namespace kdelta {

int64_t router_thread_bytes(const RouterDesc& d) {
  return (8 * d.experts + 8 * d.choices + 5 * d.groups + 63) / 64 * 64;
}
int64_t router_cpu_scratch(const RouterDesc& d) {
  return d.target.threads * router_thread_bytes(d);
}

int64_t live_rows(const RouterArgs& a) {
  const int64_t T = a.logits.dim(0);
  return a.live.null() ? T : std::clamp<int64_t>(a.live.data[0], 0, T);
}

int64_t held_experts(const RouterArgs& a) {
  return a.held > 0 ? a.held : a.logits.dim(1);
}

void sort_by_expert(const RouterArgs& a, int64_t live, int32_t* cursor) {
  const int64_t T = a.logits.dim(0), E = held_experts(a), k = a.k;
  // Place of an expert among those held; below 0 or from E on: another rank's.
  const auto held = [&](int64_t t, int64_t i) { return *a.expert.at(t, i) - a.first; };
  std::fill(cursor, cursor + E, 0);
  for (int64_t t = 0; t < live; ++t)
    for (int64_t i = 0; i < k; ++i)
      if (const int64_t e = held(t, i); e >= 0 && e < E) ++cursor[e];
  int32_t place = 0;
  for (int64_t e = 0; e < E; ++e) {
    a.expert_begin.data[e] = place;
    place += cursor[e];
    cursor[e] = a.expert_begin.data[e];
  }
  a.expert_begin.data[E] = place;
  for (int64_t t = 0; t < live; ++t)
    for (int64_t i = 0; i < k; ++i) {
      const int64_t e = held(t, i);
      if (e < 0 || e >= E) {
        *a.position.at(t, i) = -1;
        continue;
      }
      const int32_t p = cursor[e]++;
      *a.position.at(t, i) = p;
      a.source.data[p] = static_cast<int32_t>(t);
    }
  std::fill(a.source.data + place, a.source.data + T * k, -1);
  for (int64_t t = live; t < T; ++t)
    for (int64_t i = 0; i < k; ++i) {
      *a.expert.at(t, i) = -1;
      *a.weight.at(t, i) = 0;
      *a.position.at(t, i) = -1;
    }
}

}  // namespace kdelta
