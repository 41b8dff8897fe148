// The vector kernel of norm over any V of simd.h. One row at a time: the sum of squares in four accumulators (the order depends
// on D and V alone, so a row's bits do not depend on how many rows there are), then one pass of products while the row is in L1.
#pragma once

#include "kdelta/ops/common/cpu/parallel.h"
#include "kdelta/ops/common/cpu/simd.h"
#include "kdelta/ops/common/dispatch.h"
#include "kdelta/ops/norm/variants.h"

namespace kdelta {

template <class V, class In>
KDELTA_INLINE float norm_sum_of_squares(const In* x, int64_t D) {
  constexpr int64_t L = V::kLanes;
  V s0 = V::zero(), s1 = V::zero(), s2 = V::zero(), s3 = V::zero();
  int64_t d = 0;
  for (; d + 4 * L <= D; d += 4 * L) {
    const V x0 = V::load(x + d), x1 = V::load(x + d + L), x2 = V::load(x + d + 2 * L), x3 = V::load(x + d + 3 * L);
    s0 = V::fma(x0, x0, s0);
    s1 = V::fma(x1, x1, s1);
    s2 = V::fma(x2, x2, s2);
    s3 = V::fma(x3, x3, s3);
  }
  for (; d + L <= D; d += L) {
    const V v = V::load(x + d);
    s0 = V::fma(v, v, s0);
  }
  if (d < D) {
    const V v = V::load_n(x + d, D - d);
    s1 = V::fma(v, v, s1);
  }
  return ((s0 + s1) + (s2 + s3)).sum();
}

template <class V, class In, class Out>
KDELTA_INLINE void norm_row(const In* x, const float* weight, Out* out, int64_t D, float eps) {
  constexpr int64_t L = V::kLanes;
  const V scale = V::set1(1.0f / std::sqrt(norm_sum_of_squares<V>(x, D) / static_cast<float>(D) + eps));
  int64_t d = 0;
  for (; d + L <= D; d += L) (V::load(x + d) * scale * V::load(weight + d)).store(out + d);
  if (d < D) (V::load_n(x + d, D - d) * scale * V::load_n(weight + d, D - d)).store_n(out + d, D - d);
}

template <class V>
void norm_cpu(const Exec& ex, const NormArgs& a) {
  const int64_t D = a.x.dim(1);
  // About 64 KB of input per piece: large enough to hide the hand-out, small enough to balance.
  const int64_t grain = 16384 / D + 1;
  parallel_for(ex, a.x.dim(0), grain, [&](int64_t begin, int64_t end) {
    dispatch_activation(a.x.dtype, [&](auto in) {
      dispatch_activation(a.out.dtype, [&](auto o) {
        for (int64_t t = begin; t < end; ++t)
          norm_row<V>(a.x.template at<const decltype(in)>(t), a.weight.data, a.out.template at<decltype(o)>(t), D, a.eps);
      });
    });
  });
}

}  // namespace kdelta
