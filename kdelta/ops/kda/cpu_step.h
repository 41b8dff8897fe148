// The step schedule: one decode row, token by token, on the rows of S [V, K]. Rows of S never meet. A verification
// continues from what it stored and so has the bits of that many single steps (bf16 pools too). One pass over memory
// per token:
//   t = s * decay;  m = t . k;  n = t . q;  u = beta (v - m);  s' = t + u k;  o = s' . q = n + (q . k) u
// With records a few rows of S take all tokens of the row, one after the other, and leave the cache once: replay of
// what the last step's drafts left, the certain token (its state goes to the slot), the drafts (their states go
// nowhere).
#pragma once

#include <atomic>

#include "kdelta/ops/kda/cpu_replay.h"

namespace kdelta::kda_cpu {
inline namespace KDELTA_KDA_ISA {

// Rows in flight: two accumulators each cover the latency of a fused multiply-add.
inline constexpr int64_t kStepRows = 4;
// Rows of S that take all tokens together: 8 KB of fp32, beside the tokens in the first-level cache.
inline constexpr int64_t kTileRows = 16;

struct StepScratch {
  Tokens tokens;
  float* rows = nullptr;     // [2, kStepRows, Kp] the decayed rows between the two halves of a token
  float* running = nullptr;  // [V, K] the state behind a draft, with records; rounded to the pool's dtype
  KDELTA_INLINE void carve(Carver& c, int64_t K, int64_t V) {
    tokens.carve(c, K, V);
    rows = c.take<float>(2 * kStepRows * padded(K));
    running = c.take<float>(V * K);
  }
};

// First half of token i for R rows of K from src (nullptr: zeros): the decayed rows, the outputs, the changes u. kCold:
// src comes from memory.
template <class V, int64_t R, bool kCold, class From>
KDELTA_INLINE void step_read(const Tokens& x, int64_t i, int64_t r0, const From* src, float* rows, float* u) {
  constexpr int64_t L = V::kLanes;
  const int64_t K = x.K, Kp = x.Kp;
  const float *q = x.q + i * Kp, *k = x.k + i * Kp, *decay = x.decay + i * Kp;
  V m[R], n[R];
  for (int64_t r = 0; r < R; ++r) m[r] = n[r] = V::zero();
  for (int64_t d = 0; d < K; d += L) {
    const V dv = V::load(decay + d), kv = V::load(k + d), qv = V::load(q + d);
    const int64_t left = K - d;
    for (int64_t r = 0; r < R; ++r) {
      const From* p = src + r * K + d;
      const V s = src == nullptr ? V::zero() : (left >= L ? V::load(p) : V::load_n(p, left)) * dv;
      s.store(rows + r * Kp + d);
      m[r] = V::fma(s, kv, m[r]);
      n[r] = V::fma(s, qv, n[r]);
    }
  }
  if (kCold && src != nullptr) prefetch_ahead(src, R * K);
  for (int64_t r = 0; r < R; ++r) {
    u[r] = x.beta[i] * (x.v[i * x.Vp + r0 + r] - m[r].sum());
    x.out[i * x.Vp + r0 + r] = n[r].sum() + x.qk[i] * u[r];
  }
}

// Second half: rows + u k to dst, which may be where they came from, rounded to the pool's dtype S.
template <class V, int64_t R, class S, class To>
KDELTA_INLINE void step_write(const Tokens& x, int64_t i, const float* rows, const float* u, To* dst) {
  constexpr int64_t L = V::kLanes;
  const int64_t K = x.K, Kp = x.Kp;
  const float* k = x.k + i * Kp;
  V change[R];
  for (int64_t r = 0; r < R; ++r) change[r] = V::set1(u[r]);
  for (int64_t d = 0; d < K; d += L) {
    const V kv = V::load(k + d);
    const int64_t left = K - d;
    for (int64_t r = 0; r < R; ++r) {
      V s = V::fma(change[r], kv, V::load(rows + r * Kp + d));
      if constexpr (sizeof(To) > sizeof(S)) s = rounded<V, S>(s);
      if (left >= L)
        s.store(dst + r * K + d);
      else
        s.store_n(dst + r * K + d, left);
    }
  }
}

// Token i on `width` rows, the first of them r0 of the task. The second half of a group of rows follows the first half
// of the next group: its sums have the time that takes to arrive. changes: where u goes as well; null: nowhere.
template <class V, class S, bool kCold, class From, class To>
KDELTA_INLINE void step_token(const Tokens& x, int64_t i, int64_t r0, int64_t width, const From* src, float* buffer,
                              To* dst, float* changes = nullptr) {
  constexpr int64_t R = kStepRows;
  const int64_t K = x.K, groups = width / R;
  auto rows = [&](int64_t g) { return buffer + (g & 1) * R * x.Kp; };
  auto at = [&](int64_t r) { return src == nullptr ? src : src + r * K; };
  float u[2][R];
  for (int64_t g = 0; g <= groups; ++g) {
    if (g < groups) step_read<V, R, kCold>(x, i, r0 + g * R, at(g * R), rows(g), u[g & 1]);
    if (g > 0) step_write<V, R, S>(x, i, rows(g - 1), u[(g - 1) & 1], dst + (g - 1) * R * K);
    if (changes != nullptr && g < groups) std::memcpy(changes + g * R, u[g & 1], sizeof(u[0]));
  }
  for (int64_t r = groups * R; r < width; ++r) {
    step_read<V, 1, kCold>(x, i, r0 + r, at(r), buffer, u[0]);
    step_write<V, 1, S>(x, i, buffer, u[0], dst + r * K);
    if (changes != nullptr) changes[r] = u[0][0];
  }
}

template <class V, class S>
void step_sequence(const KdaArgs& a, const Task& task, StepScratch& w) {
  const int32_t* cu = a.seq.cu.data;
  const int64_t len = cu[task.n + 1] - cu[task.n], width = task.v_end - task.v_begin;
  const S* src = nullptr;
  if (a.seq.fresh.data[task.n] == 0) src = state_rows<S>(a, task, *a.seq.slot.at(task.n, start_column(a, task.n)));
  for (int64_t first = 0; first < len; first += kKdaChunk) {
    const int64_t count = len - first < kKdaChunk ? len - first : kKdaChunk, t = cu[task.n] + first;
    prepare<V>(a, task, t, count, w.tokens);
    for (int64_t i = 0; i < count; ++i) {
      S* dst = state_rows<S>(a, task, *a.seq.slot.at(task.n, first + i));
      step_token<V, S, true>(w.tokens, i, 0, width, src, w.rows, dst);
      src = dst;
    }
    write_out<V>(a, task, t, count, w.tokens);
  }
}

// The sequence's own slot, with records.
template <class S>
KDELTA_INLINE S* own_rows(const KdaArgs& a, const Task& task) {
  return state_rows<S>(a, task, *a.seq.slot.at(task.n, 0));
}

// What the last step of the sequence left to replay; none when it starts from zero.
KDELTA_INLINE Records pending(const KdaArgs& a, const Task& task) {
  const int64_t count = a.seq.fresh.data[task.n] != 0 ? 0 : a.seq.accepted.data[task.n] - 1;
  return {a.records.at(*a.seq.slot.at(task.n, 0), 0, task.h), a.records.stride[1], count, a.q.dim(2)};
}

KDELTA_INLINE float* record(const KdaArgs& a, const Task& task, int64_t j) {
  return a.records.at(*a.seq.slot.at(task.n, 0), j, task.h);
}

// Tokens [first, first + count) of the row on the `rows` rows of S from r0 on. running: their state behind the last
// token of an earlier chunk, and the memory for it.
template <class V, class S>
KDELTA_INLINE void step_tile(const KdaArgs& a, const Task& task, int64_t first, int64_t count, int64_t r0, int64_t rows,
                             StepScratch& w, float* running) {
  const int64_t K = w.tokens.K, v = task.v_begin + r0;
  const auto changes = [&](int64_t i) { return record(a, task, first + i - 1) + 2 * K + v; };
  int64_t i = 0;
  if (first == 0) {
    S* own = own_rows<S>(a, task) + r0 * K;
    if (const Records before = pending(a, task); before.count > 0) {
      replay<V, S>(before, v, rows, own, running);
      step_token<V, S, false>(w.tokens, i++, r0, rows, running, w.rows, own);
    } else {
      step_token<V, S, true>(w.tokens, i++, r0, rows, a.seq.fresh.data[task.n] != 0 ? nullptr : own, w.rows, own);
    }
    if (i < count) step_token<V, S, false>(w.tokens, i, r0, rows, own, w.rows, running, changes(i)), ++i;
  }
  for (; i < count; ++i) step_token<V, S, false>(w.tokens, i, r0, rows, running, w.rows, running, changes(i));
}

// Decays and keys of tokens [first, first + count), drafts only, to their records.
KDELTA_INLINE void record_keys(const KdaArgs& a, const Task& task, int64_t first, int64_t count, const Tokens& x) {
  for (int64_t i = first == 0 ? 1 : 0; i < count; ++i) {
    float* r = record(a, task, first + i - 1);
    std::memcpy(r, x.decay + i * x.Kp, static_cast<size_t>(x.K) * sizeof(float));
    std::memcpy(r + x.K, x.k + i * x.Kp, static_cast<size_t>(x.K) * sizeof(float));
  }
}

// parts_left: how many parts of this head have not yet replayed its old records; whoever comes last writes the decays
// and keys of the new ones.
template <class V, class S>
void step_sequence_recorded(const KdaArgs& a, const Task& task, StepScratch& w, int32_t* parts_left) {
  const int32_t* cu = a.seq.cu.data;
  const int64_t len = cu[task.n + 1] - cu[task.n], width = task.v_end - task.v_begin, K = w.tokens.K;
  // Tiles share their memory unless a later chunk of tokens has to find it.
  const int64_t tile_stride = len > kKdaChunk ? K : 0;
  const auto each_chunk = [&](auto&& f) {
    for (int64_t first = 0; first < len; first += kKdaChunk)
      f(first, len - first < kKdaChunk ? len - first : kKdaChunk);
  };
  each_chunk([&](int64_t first, int64_t count) {
    prepare<V>(a, task, cu[task.n] + first, count, w.tokens);
    for (int64_t r0 = 0; r0 < width; r0 += kTileRows)
      step_tile<V, S>(a, task, first, count, r0, width - r0 < kTileRows ? width - r0 : kTileRows, w,
                      w.running + r0 * tile_stride);
    write_out<V>(a, task, cu[task.n] + first, count, w.tokens);
  });
  if (parts_left != nullptr && std::atomic_ref<int32_t>(*parts_left).fetch_sub(1, std::memory_order_acq_rel) != 1)
    return;
  each_chunk([&](int64_t first, int64_t count) {
    if (len > kKdaChunk) prepare<V>(a, task, cu[task.n] + first, count, w.tokens);
    record_keys(a, task, first, count, w.tokens);
  });
}

}  // namespace KDELTA_KDA_ISA
}  // namespace kdelta::kda_cpu
