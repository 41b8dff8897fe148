// The work of one grouped projection on the CPU: every non-empty expert is one Projection, cut into panels; items
// number the panels of all of them in order. One parallel region serves a decode step of 16 lone tokens as well as a
// prefill.
#pragma once

#include "kdelta/ops/common/cpu/projection.h"

namespace kdelta {

struct ExpertWork {
  const int32_t* begin = nullptr;   // [E+1]
  const int32_t* active = nullptr;  // [count] experts that have tokens, ascending
  int64_t count = 0;
  int64_t panels = 0;  // per expert

  KDELTA_INLINE int64_t items() const { return count * panels; }
};

// Fills active[0..E) and returns the work. `panels` is the same for all experts.
KDELTA_INLINE ExpertWork expert_work(const int32_t* begin, int64_t E, int64_t panels, int32_t* active) {
  ExpertWork work{.begin = begin, .active = active, .panels = panels};
  for (int64_t e = 0; e < E; ++e)
    if (begin[e + 1] > begin[e]) active[work.count++] = static_cast<int32_t>(e);
  return work;
}

// f(expert, first panel, last panel) for the items [begin, end).
template <class F>
KDELTA_INLINE void for_each_expert(const ExpertWork& work, int64_t begin, int64_t end, F&& f) {
  while (begin < end) {
    const int64_t first = begin % work.panels;
    const int64_t left = end - begin, here = work.panels - first < left ? work.panels - first : left;
    f(static_cast<int64_t>(work.active[begin / work.panels]), first, first + here);
    begin += here;
  }
}

}  // namespace kdelta
