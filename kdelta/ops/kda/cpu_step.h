// The step schedule: one decode row, token by token, on the rows of S [V, K]. Rows of S never meet. A verification
// continues from what it stored and so has the bits of that many single steps (bf16 pools too). One pass over memory
// per token:
//   t = s * decay;  m = t . k;  n = t . q;  u = beta (v - m);  s' = t + u k;  o = s' . q = n + (q . k) u
#pragma once

#include "kdelta/ops/kda/cpu_inputs.h"

namespace kdelta::kda_cpu {
inline namespace KDELTA_KDA_ISA {

// Rows in flight: two accumulators each cover the latency of a fused multiply-add.
inline constexpr int64_t kStepRows = 4;
// The hardware streams lines of one page well; asking this far ahead crosses page ends and the jump to the next head.
inline constexpr int64_t kStepAhead = 4096;

struct StepScratch {
  Tokens tokens;
  float* rows = nullptr;  // [2, kStepRows, Kp] the decayed rows between the two halves of a token
  KDELTA_INLINE void carve(Carver& c, int64_t K, int64_t V) {
    tokens.carve(c, K, V);
    rows = c.take<float>(2 * kStepRows * padded(K));
  }
};

// First half of token i for R rows of K from src (nullptr: zeros): the decayed rows, the outputs, the changes u.
template <class V, int64_t R, class S>
KDELTA_INLINE void step_read(const Tokens& x, int64_t i, int64_t r0, const S* src, float* rows, float* u) {
  constexpr int64_t L = V::kLanes;
  const int64_t K = x.K, Kp = x.Kp;
  const float *q = x.q + i * Kp, *k = x.k + i * Kp, *decay = x.decay + i * Kp;
  V m[R], n[R];
  for (int64_t r = 0; r < R; ++r) m[r] = n[r] = V::zero();
  for (int64_t d = 0; d < K; d += L) {
    const V dv = V::load(decay + d), kv = V::load(k + d), qv = V::load(q + d);
    const int64_t left = K - d;
    for (int64_t r = 0; r < R; ++r) {
      const S* p = src + r * K + d;
      const V s = src == nullptr ? V::zero() : (left >= L ? V::load(p) : V::load_n(p, left)) * dv;
      s.store(rows + r * Kp + d);
      m[r] = V::fma(s, kv, m[r]);
      n[r] = V::fma(s, qv, n[r]);
    }
  }
  if (src != nullptr)
    for (int64_t d = 0; d < R * K; d += 64 / static_cast<int64_t>(sizeof(S)))
      __builtin_prefetch(reinterpret_cast<const char*>(src + d) + kStepAhead, 1);
  for (int64_t r = 0; r < R; ++r) {
    u[r] = x.beta[i] * (x.v[i * x.Vp + r0 + r] - m[r].sum());
    x.out[i * x.Vp + r0 + r] = n[r].sum() + x.qk[i] * u[r];
  }
}

// Second half: rows + u k to dst, which may be where they came from.
template <class V, int64_t R, class S>
KDELTA_INLINE void step_write(const Tokens& x, int64_t i, const float* rows, const float* u, S* dst) {
  constexpr int64_t L = V::kLanes;
  const int64_t K = x.K, Kp = x.Kp;
  const float* k = x.k + i * Kp;
  V change[R];
  for (int64_t r = 0; r < R; ++r) change[r] = V::set1(u[r]);
  for (int64_t d = 0; d < K; d += L) {
    const V kv = V::load(k + d);
    const int64_t left = K - d;
    for (int64_t r = 0; r < R; ++r) {
      const V s = V::fma(change[r], kv, V::load(rows + r * Kp + d));
      if (left >= L)
        s.store(dst + r * K + d);
      else
        s.store_n(dst + r * K + d, left);
    }
  }
}

// Token i on `width` rows. The second half of a group of rows follows the first half of the next group: its sums have
// the time that takes to arrive.
template <class V, class S>
KDELTA_INLINE void step_token(const Tokens& x, int64_t i, int64_t width, const S* src, float* buffer, S* dst) {
  constexpr int64_t R = kStepRows;
  const int64_t K = x.K, groups = width / R;
  auto rows = [&](int64_t g) { return buffer + (g & 1) * R * x.Kp; };
  auto at = [&](int64_t r) { return src == nullptr ? src : src + r * K; };
  float u[2][R];
  for (int64_t g = 0; g <= groups; ++g) {
    if (g < groups) step_read<V, R>(x, i, g * R, at(g * R), rows(g), u[g & 1]);
    if (g > 0) step_write<V, R>(x, i, rows(g - 1), u[(g - 1) & 1], dst + (g - 1) * R * K);
  }
  for (int64_t r = groups * R; r < width; ++r) {
    step_read<V, 1>(x, i, r, at(r), buffer, u[0]);
    step_write<V, 1>(x, i, buffer, u[0], dst + r * K);
  }
}

template <class V, class S>
void step_sequence(const KdaArgs& a, const Task& task, StepScratch& w) {
  const int32_t* cu = a.seq.cu.data;
  const int64_t len = cu[task.n + 1] - cu[task.n], width = task.v_end - task.v_begin;
  const S* src = nullptr;
  if (a.seq.fresh.data[task.n] == 0)
    src = state_rows<S>(a, task, *a.seq.slot.at(task.n, a.seq.accepted.data[task.n] - 1));
  for (int64_t first = 0; first < len; first += kKdaChunk) {
    const int64_t count = len - first < kKdaChunk ? len - first : kKdaChunk, t = cu[task.n] + first;
    prepare<V>(a, task, t, count, w.tokens);
    for (int64_t i = 0; i < count; ++i) {
      S* dst = state_rows<S>(a, task, *a.seq.slot.at(task.n, first + i));
      step_token<V>(w.tokens, i, width, src, w.rows, dst);
      src = dst;
    }
    write_out<V>(a, task, t, count, w.tokens);
  }
}

}  // namespace KDELTA_KDA_ISA
}  // namespace kdelta::kda_cpu
