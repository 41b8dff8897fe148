// The step schedule: one decode row, token by token, on the rows of S [V, K]. A row of S never meets another, so it stays in L1
// for every token of a verification, which continues from what it stored and so has the bits of that many single steps (bf16
// pools too). One pass over memory:
//   t = s * decay;  m = t . k;  n = t . q;  u = beta (v - m);  s' = t + u k;  o = s' . q = n + (q . k) u
#pragma once

#include "kdelta/ops/kda/cpu_inputs.h"

namespace kdelta::kda_cpu::inline KDELTA_KDA_ISA {

// Rows in flight: two accumulators each cover the latency of a fused multiply-add.
inline constexpr int64_t kStepRows = 4;
// The hardware streams lines of one page well; asking this far ahead crosses page ends and the jump to the next head.
inline constexpr int64_t kStepAhead = 4096;

struct StepScratch {
  Tokens tokens;
  float* rows = nullptr;  // [kStepRows, Kp] the decayed rows between the two passes of a token
  KDELTA_INLINE void carve(Carver& c, int64_t K, int64_t V) {
    tokens.carve(c, K, V);
    rows = c.take<float>(kStepRows * padded(K));
  }
};

// One token on R rows of K from src (nullptr: zeros) to dst, which may be src; v and out point at the first row's element.
template <class V, int64_t R, class S>
KDELTA_INLINE void step_token(const Tokens& x, int64_t i, int64_t r0, const S* src, float* rows, S* dst) {
  constexpr int64_t L = V::kLanes;
  const float *q = x.q + i * x.Kp, *k = x.k + i * x.Kp, *decay = x.decay + i * x.Kp;
  const float* v = x.v + i * x.Vp + r0;
  float* out = x.out + i * x.Vp + r0;
  V m[R], n[R], u[R];
  for (int64_t r = 0; r < R; ++r) m[r] = n[r] = V::zero();
  for (int64_t d = 0; src != nullptr && d < x.K; d += L) {
    const V dv = V::load(decay + d), kv = V::load(k + d), qv = V::load(q + d);
    const int64_t left = x.K - d;
    for (int64_t r = 0; r < R; ++r) {
      const S* p = src + r * x.K + d;
      const V s = (left >= L ? V::load(p) : V::load_n(p, left)) * dv;
      s.store(rows + r * x.Kp + d);
      m[r] = V::fma(s, kv, m[r]);
      n[r] = V::fma(s, qv, n[r]);
    }
  }
  for (int64_t r = 0; r < R; ++r) {
    const float change = x.beta[i] * (v[r] - m[r].sum());
    out[r] = n[r].sum() + x.qk[i] * change;
    u[r] = V::set1(change);
  }
  for (int64_t d = 0; d < x.K; d += L) {
    const V kv = V::load(k + d);
    const int64_t left = x.K - d;
    for (int64_t r = 0; r < R; ++r) {
      const V s = src != nullptr ? V::fma(u[r], kv, V::load(rows + r * x.Kp + d)) : u[r] * kv;
      if (left >= L) s.store(dst + r * x.K + d);
      else s.store_n(dst + r * x.K + d, left);
    }
  }
}

// R rows from row r0 of the task through `count` tokens that start at token `first` of the sequence; `src` is where they lie.
template <class V, int64_t R, class S>
KDELTA_INLINE void step_rows(const KdaArgs& a, const Task& task, int64_t r0, int64_t first, int64_t count, const S* src,
                             StepScratch& w) {
  const int64_t K = w.tokens.K;
  if (src != nullptr) {
    src += r0 * K;
    for (int64_t d = 0; d < R * K; d += 64 / static_cast<int64_t>(sizeof(S)))
      __builtin_prefetch(reinterpret_cast<const char*>(src + d) + kStepAhead, 1);
  }
  for (int64_t i = 0; i < count; ++i) {
    S* dst = state_rows<S>(a, task, *a.seq.slot.at(task.n, first + i)) + r0 * K;
    step_token<V, R>(w.tokens, i, r0, src, w.rows, dst);
    src = dst;
  }
}

template <class V, class S>
void step_sequence(const KdaArgs& a, const Task& task, StepScratch& w) {
  const int32_t* cu = a.seq.cu.data;
  const int64_t len = cu[task.n + 1] - cu[task.n], width = task.v_end - task.v_begin;
  const S* src = nullptr;
  if (a.seq.fresh.data[task.n] == 0) src = state_rows<S>(a, task, *a.seq.slot.at(task.n, a.seq.accepted.data[task.n] - 1));
  for (int64_t first = 0; first < len; first += kKdaChunk) {
    const int64_t count = len - first < kKdaChunk ? len - first : kKdaChunk, t = cu[task.n] + first;
    prepare<V>(a, task, t, count, w.tokens);
    int64_t r = 0;
    for (; r + kStepRows <= width; r += kStepRows) step_rows<V, kStepRows>(a, task, r, first, count, src, w);
    for (; r < width; ++r) step_rows<V, 1>(a, task, r, first, count, src, w);
    write_out<V>(a, task, t, count, w.tokens);
    src = state_rows<S>(a, task, *a.seq.slot.at(task.n, first + count - 1));
  }
}

}  // namespace kdelta::kda_cpu::inline KDELTA_KDA_ISA
