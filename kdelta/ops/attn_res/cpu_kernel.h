// The vector kernel of attn_res over any V of simd.h. One token at a time: a pass over its streams for the scores, a
// pass for the mixture while they are in L2 (9 streams of 7168 in bf16 are 129 KB), and the norm while the mixture is
// in L1.
#pragma once

#include <algorithm>
#include <cstring>

#include "kdelta/ops/attn_res/variants.h"
#include "kdelta/ops/common/cpu/parallel.h"
#include "kdelta/ops/common/cpu/rms_norm.h"
#include "kdelta/ops/common/dispatch.h"

namespace kdelta {

// Sum of squares and dot product with the score weight in one read of v. `next` is the row that is read after it: rows
// are too short for the processor to run ahead by itself.
template <class V, class E>
KDELTA_INLINE float attn_res_score(const E* v, const float* weight, int64_t D, float eps, const E* next) {
  constexpr int64_t L = V::kLanes;
  V s0 = V::zero(), s1 = V::zero(), d0 = V::zero(), d1 = V::zero();
  int64_t d = 0;
  for (; d + 2 * L <= D; d += 2 * L) {
    __builtin_prefetch(next + d);
    const V x0 = V::load(v + d), x1 = V::load(v + d + L);
    s0 = V::fma(x0, x0, s0);
    s1 = V::fma(x1, x1, s1);
    d0 = V::fma(x0, V::load(weight + d), d0);
    d1 = V::fma(x1, V::load(weight + d + L), d1);
  }
  for (; d < D; d += L) {
    const int64_t n = std::min(L, D - d);
    const V x = V::load_n(v + d, n);
    s0 = V::fma(x, x, s0);
    d0 = V::fma(x, V::load_n(weight + d, n), d0);
  }
  return (d0 + d1).sum() / std::sqrt((s0 + s1).sum() / static_cast<float>(D) + eps);
}

// Scores to probabilities, in place.
template <class V>
KDELTA_INLINE void attn_res_softmax(float* p, int64_t count) {
  float top = p[0], sum = 0;
  for (int64_t i = 1; i < count; ++i) top = std::max(top, p[i]);
  for (int64_t i = 0; i < count; ++i) sum += p[i] = std::exp(p[i] - top);
  for (int64_t i = 0; i < count; ++i) p[i] /= sum;
}

// out[d] = sum_i p[i] stream(i)[d], four vectors at a time, streams in order.
template <class V, class E, class Stream>
KDELTA_INLINE void attn_res_mix(Stream stream, const float* p, int64_t count, E* out, int64_t D) {
  constexpr int64_t L = V::kLanes;
  int64_t d = 0;
  for (; d + 4 * L <= D; d += 4 * L) {
    V m[4];
    for (int j = 0; j < 4; ++j) m[j] = V::set1(p[0]) * V::load(stream(0) + d + j * L);
    for (int64_t i = 1; i < count; ++i)
      for (int j = 0; j < 4; ++j) m[j] = V::fma(V::set1(p[i]), V::load(stream(i) + d + j * L), m[j]);
    for (int j = 0; j < 4; j += 2) V::store_pair(m[j], m[j + 1], out + d + j * L);
  }
  for (; d < D; d += L) {
    const int64_t n = std::min(L, D - d);
    V m = V::set1(p[0]) * V::load_n(stream(0) + d, n);
    for (int64_t i = 1; i < count; ++i) m = V::fma(V::set1(p[i]), V::load_n(stream(i) + d, n), m);
    m.store_n(out + d, n);
  }
}

// to = x + y
template <class V, class E>
KDELTA_INLINE void attn_res_add(const E* x, const E* y, E* to, int64_t D) {
  constexpr int64_t L = V::kLanes;
  int64_t d = 0;
  for (; d + 2 * L <= D; d += 2 * L)
    V::store_pair(V::load(x + d) + V::load(y + d), V::load(x + d + L) + V::load(y + d + L), to + d);
  for (; d < D; d += L) {
    const int64_t n = std::min(L, D - d);
    (V::load_n(x + d, n) + V::load_n(y + d, n)).store_n(to + d, n);
  }
}

template <class V, class E>
KDELTA_INLINE void attn_res_token(const AttnResArgs& a, int64_t t, float* p) {
  const int64_t D = a.sum.dim(1), count = a.n + 1;
  const E* sum = a.sum.template at<const E>(t);
  if (!a.addend.null()) {
    E* added = a.sum_out.template at<E>(t);
    attn_res_add<V>(sum, a.addend.template at<const E>(t), added, D);
    sum = added;
  }
  auto stream = [&](int64_t i) { return i < a.n ? a.blocks.template at<const E>(i, t) : sum; };
  E* out = a.out.template at<E>(t);
  if (a.n == 0) {
    std::memcpy(out, stream(0), static_cast<size_t>(D) * sizeof(E));
  } else {
    const E* after = a.blocks.template at<const E>(0, t + 1 < a.sum.dim(0) ? t + 1 : t);
    for (int64_t i = 0; i < count; ++i)
      p[i] = attn_res_score<V>(stream(i), a.score_weight.data, D, a.eps, i + 1 < count ? stream(i + 1) : after);
    attn_res_softmax<V>(p, count);
    attn_res_mix<V>(stream, p, count, out, D);
  }
  if (!a.norm_weight.null()) rms_norm_row<V>(out, a.norm_weight.data, out, D, a.norm_eps);
}

template <class V>
void attn_res_cpu(const Exec& ex, const AttnResArgs& a, const AttnResDesc& desc, void* scratch) {
  const int64_t stride = attn_res_scratch_stride(desc);
  const int64_t grain = 16384 / (a.sum.dim(1) * (a.n + 1)) + 1;
  parallel_for_ranked(ex, a.sum.dim(0), grain, [&](int rank, int64_t begin, int64_t end) {
    float* p = static_cast<float*>(scratch) + rank * stride;
    dispatch_activation(a.sum.dtype, [&](auto element) {
      for (int64_t t = begin; t < end; ++t) attn_res_token<V, decltype(element)>(a, t, p);
    });
  });
}

}  // namespace kdelta
