// Loops over an engine's thread team. Which thread does which piece never changes a result: pieces are independent and
// every reduction stays inside one piece.
#pragma once

#include <atomic>
#include <cstdint>

#include "kdelta/core/exec.h"

namespace kdelta {

// f(begin, end) over [0, n) in pieces of `grain`, handed out first come first served so that a descheduled thread does
// not hold up the rest. One thread or one piece: runs inline.
template <class F>
inline void parallel_for(const Exec& ex, int64_t n, int64_t grain, F&& f) {
  if (n <= 0) return;
  if (grain < 1) grain = 1;
  if (ex.threads->size() == 1 || n <= grain) {
    f(int64_t{0}, n);
    return;
  }
  std::atomic<int64_t> next{0};
  auto worker = [&](int) {
    for (;;) {
      const int64_t begin = next.fetch_add(grain, std::memory_order_relaxed);
      if (begin >= n) return;
      f(begin, begin + grain < n ? begin + grain : n);
    }
  };
  ex.threads->run(worker);
}

// The same with the rank of the thread, for code that keeps scratch per thread: f(rank, begin, end).
template <class F>
inline void parallel_for_ranked(const Exec& ex, int64_t n, int64_t grain, F&& f) {
  if (n <= 0) return;
  if (grain < 1) grain = 1;
  if (ex.threads->size() == 1 || n <= grain) {
    f(0, int64_t{0}, n);
    return;
  }
  std::atomic<int64_t> next{0};
  auto worker = [&](int rank) {
    for (;;) {
      const int64_t begin = next.fetch_add(grain, std::memory_order_relaxed);
      if (begin >= n) return;
      f(rank, begin, begin + grain < n ? begin + grain : n);
    }
  };
  ex.threads->run(worker);
}

}  // namespace kdelta
