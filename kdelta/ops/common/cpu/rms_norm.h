// RMS norm of one row over any V of simd.h, shared by norm and by the ops that end in one: the same code gives the same
// bits, so a fused norm equals a separate call. Sum of squares in four accumulators, in an order that depends on D and
// V alone.
#pragma once

#include "kdelta/ops/common/cpu/simd.h"

namespace kdelta {

template <class V, class In>
KDELTA_INLINE float rms_sum_of_squares(const In* x, int64_t D) {
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

// 1 / sqrt(mean(x^2) + eps)
template <class V, class In>
KDELTA_INLINE float rms_scale(const In* x, int64_t D, float eps) {
  return 1.0f / std::sqrt(rms_sum_of_squares<V>(x, D) / static_cast<float>(D) + eps);
}

// out may be x.
template <class V, class In, class Out>
KDELTA_INLINE void rms_norm_row(const In* x, const float* weight, Out* out, int64_t D, float eps) {
  constexpr int64_t L = V::kLanes;
  const V scale = V::set1(rms_scale<V>(x, D, eps));
  int64_t d = 0;
  for (; d + 2 * L <= D; d += 2 * L)
    V::store_pair(V::load(x + d) * scale * V::load(weight + d), V::load(x + d + L) * scale * V::load(weight + d + L),
                  out + d);
  for (; d < D; d += L) {
    const int64_t n = D - d < L ? D - d : L;
    simd::store_lanes(simd::load_lanes<V>(x + d, n) * scale * simd::load_lanes<V>(weight + d, n), out + d, n);
  }
}

}  // namespace kdelta
