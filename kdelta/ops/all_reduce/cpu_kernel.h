// The vector kernel of all_reduce over any V of simd.h. A rank sums its columns of all ranks in registers and writes
// them to all: each partial is read once and each output written once by the ranks together.
#pragma once

#include "kdelta/ops/all_reduce/variants.h"
#include "kdelta/ops/common/cpu/parallel.h"
#include "kdelta/ops/common/cpu/simd.h"
#include "kdelta/ops/common/dispatch.h"

namespace kdelta {

// n <= kLanes columns from d on of token t.
template <class V, class Out>
KDELTA_INLINE void all_reduce_columns(const AllReduceArgs* const* peers, int ranks, const AllReduceArgs& a, int64_t t,
                                      int64_t d, int64_t n) {
  const auto load = [n](const auto* p) { return n == V::kLanes ? V::load(p) : V::load_n(p, n); };
  V sum = load(peers[0]->partial.template at<const float>(t) + d);
  for (int r = 1; r < ranks; ++r) sum = sum + load(peers[r]->partial.template at<const float>(t) + d);
  if (!a.addend.null())
    dispatch_activation(a.addend.dtype,
                        [&](auto x) { sum = sum + load(a.addend.template at<const decltype(x)>(t) + d); });
  for (int r = 0; r < ranks; ++r) {
    Out* out = peers[r]->out.template at<Out>(t) + d;
    if (n == V::kLanes)
      sum.store(out);
    else
      sum.store_n(out, n);
  }
}

template <class V>
void all_reduce_cpu(const Exec& ex, const AllReduceArgs& a, const AllReduceDesc& desc) {
  const AllReduceArgs* const* peers = all_reduce_meet(ex, a);
  const int n = desc.ranks;
  const AllReduceShare mine = all_reduce_share(desc.width, ex.comm->rank(), n);
  const int64_t width = mine.end - mine.begin;
  // About 64 KB of partial sums per piece: more than a hand-out costs.
  const int64_t grain = 16384 / (width * n + 1) + 1;
  parallel_for(ex, width > 0 ? desc.rows : 0, grain, [&](int64_t begin, int64_t end) {
    dispatch_activation(a.out.dtype, [&](auto out) {
      for (int64_t t = begin; t < end; ++t)
        for (int64_t d = mine.begin; d < mine.end; d += V::kLanes)
          all_reduce_columns<V, decltype(out)>(peers, n, a, t, d, mine.end - d < V::kLanes ? mine.end - d : V::kLanes);
    });
  });
  all_reduce_leave(ex);
}

}  // namespace kdelta
