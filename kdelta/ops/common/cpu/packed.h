// Driver of the kernels that pack tokens first: the team packs some of them, then hands out panels of weight rows.
//
// A Kernel has
//   Sizes      kTokens: tokens packed at a time; kUnit: tokens packed together; bytes: packed(tokens, K) of one
//              projection, packed_at_most(tokens, K) of any number of projections with so many tokens in all,
//              thread(T, K) of one thread's scratch for projections of at most T tokens
//   pack(p, begin, end, packed)                tokens [begin, end) of p; begin is a multiple of kUnit
//   multiply(p, packed, begin, end, scratch)   panels [begin, end) of p, all its tokens
#pragma once

#include "kdelta/ops/common/cpu/parallel.h"
#include "kdelta/ops/common/cpu/projection.h"

namespace kdelta {

template <class Sizes>
KDELTA_INLINE int64_t packed_scratch_bytes(int64_t T, int64_t K, int threads) {
  return Sizes::packed(T < Sizes::kTokens ? T : Sizes::kTokens, K) + threads * Sizes::thread(T, K);
}

// The parts share their tokens, which are packed once; `scratch` has packed_scratch_bytes<Kernel::Sizes>.
template <class Kernel>
void project_packed(const Exec& ex, const ProjectionList& all, void* scratch) {
  using Sizes = typename Kernel::Sizes;
  const int64_t T = all.part[0].T, K = all.part[0].w.cols, panels = all.panels();
  char* threads = static_cast<char*>(scratch) + Sizes::packed(T < Sizes::kTokens ? T : Sizes::kTokens, K);
  for (int64_t first = 0; first < T; first += Sizes::kTokens) {
    const ProjectionList list = all.tokens(first, T - first < Sizes::kTokens ? T - first : Sizes::kTokens);
    const Projection& p = list.part[0];
    auto pack = [&](int64_t begin, int64_t end) {
      Kernel::pack(p, begin * Sizes::kUnit, end * Sizes::kUnit < p.T ? end * Sizes::kUnit : p.T, scratch);
    };
    parallel_for(ex, (p.T + Sizes::kUnit - 1) / Sizes::kUnit, 65536 / (2 * Sizes::kUnit * K) + 1, pack);
    auto multiply = [&](int rank, int64_t begin, int64_t end) {
      list.for_each(begin, end, [&](const Projection& part, int64_t at, int64_t last) {
        Kernel::multiply(part, scratch, at, last, threads + rank * Sizes::thread(T, K));
      });
    };
    parallel_for_ranked(ex, panels, group_grain(panels, ex.threads->size()), multiply);
  }
}

}  // namespace kdelta
