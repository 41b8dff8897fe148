// The vector kernel of moe_combine over any V of simd.h. Eight vectors of columns stay in registers while the k rows of
// a token pass. Each column is its own sum in the order of the choices, so neither that width nor threads show in the
// bits.
#pragma once

#include "kdelta/ops/common/cpu/parallel.h"
#include "kdelta/ops/common/cpu/simd.h"
#include "kdelta/ops/common/dispatch.h"
#include "kdelta/ops/moe_combine/variants.h"

namespace kdelta {

template <class V, class T>
KDELTA_INLINE V moe_combine_load(const T* p, int64_t n) {
  return n == V::kLanes ? V::load(p) : V::load_n(p, n);
}

// kVectors vectors of columns from d on; the last holds n <= kLanes of them.
template <class V, class Y, class Out, int kVectors>
KDELTA_INLINE void moe_combine_columns(const MoeCombineArgs& a, int64_t t, int64_t d, int64_t n) {
  constexpr int64_t L = V::kLanes;
  V sum[kVectors];
  for (int v = 0; v < kVectors; ++v) sum[v] = V::zero();
  bool live = false;
  for (int64_t i = 0; i < a.position.dim(1); ++i) {
    const int32_t p = *a.position.at(t, i);
    if (p < 0) continue;
    live = true;
    const V weight = V::set1(*a.weight.at(t, i));
    const Y* y = a.y.template at<const Y>(p) + d;
    for (int v = 0; v < kVectors; ++v)
      sum[v] = V::fma(weight, moe_combine_load<V>(y + v * L, v + 1 < kVectors ? L : n), sum[v]);
  }
  Out* out = a.out.template at<Out>(t) + d;
  for (int v = 0; v < kVectors; ++v) {
    const int64_t width = v + 1 < kVectors ? L : n;
    if (live && !a.addend.null()) {
      dispatch_activation(a.addend.dtype, [&](auto x) {
        sum[v] = sum[v] + moe_combine_load<V>(a.addend.template at<const decltype(x)>(t) + d + v * L, width);
      });
    }
    if (width == L)
      sum[v].store(out + v * L);
    else
      sum[v].store_n(out + v * L, width);
  }
}

template <class V, class Y, class Out>
void moe_combine_row(const MoeCombineArgs& a, int64_t t) {
  constexpr int64_t L = V::kLanes;
  const int64_t D = a.out.dim(1);
  int64_t d = 0;
  for (; d + 8 * L <= D; d += 8 * L) moe_combine_columns<V, Y, Out, 8>(a, t, d, L);
  for (; d < D; d += L) moe_combine_columns<V, Y, Out, 1>(a, t, d, D - d < L ? D - d : L);
}

template <class V>
void moe_combine_cpu(const Exec& ex, const MoeCombineArgs& a) {
  // About 64 K elements (3 us from cache) per piece: one token of decode costs less than waking the team.
  const int64_t grain = 65536 / (a.out.dim(1) * a.position.dim(1) + 1) + 1;
  parallel_for(ex, a.out.dim(0), grain, [&](int64_t begin, int64_t end) {
    dispatch_activation(a.y.dtype, [&](auto y) {
      dispatch_activation(a.out.dtype, [&](auto out) {
        for (int64_t t = begin; t < end; ++t) moe_combine_row<V, decltype(y), decltype(out)>(a, t);
      });
    });
  });
}

}  // namespace kdelta
