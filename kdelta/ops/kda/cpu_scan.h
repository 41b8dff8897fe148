// The fp32 prefill schedule: the recurrence token by token on panels of S^T [K, W], value channels in the vector lanes,
// so that both reductions over K are plain additions of vectors. The update of one token is fused into the decay of the
// next:
//   s <- (s + k_prev u_prev) * decay;  m += s k;  n += s q        (four operations per element, one load, one store)
// At fp32 this costs no more than a chunk form (notes.md), and it is exact for every gate.
#pragma once

#include "kdelta/ops/kda/cpu_inputs.h"

namespace kdelta::kda_cpu {
inline namespace KDELTA_KDA_ISA {

template <class V>
struct ScanShape {
  // Four vectors of W where 32 registers exist; 128 x 64 floats are 32 KB, which leaves L1 room for the tokens.
  static constexpr int64_t kVectors = V::kLanes == 16 ? 4 : 2;
  static constexpr int64_t kWidth = kVectors * V::kLanes;
};

struct ScanScratch {
  Tokens tokens;
  float* panels = nullptr;  // [ceil(Vp / W), Kp, W]
  float* snap = nullptr;    // [Kp, W] a panel with its last update applied, on the way to a snapshot slot
  float* zeros = nullptr;   // [Kp] the key before the first token

  KDELTA_INLINE void carve(Carver& c, int64_t K, int64_t V) {
    tokens.carve(c, K, (V + 63) / 64 * 64);  // whole panels of every width
    panels = c.take<float>(tokens.Kp * tokens.Vp);
    snap = c.take<float>(tokens.Kp * 64);
    zeros = c.take<float>(tokens.Kp);
  }
};

// Rows [rows, K] of S, `width` of them, into the columns of a panel [Kp, W] and back, in 4 x 4 blocks.
typedef float Quad __attribute__((vector_size(16)));
KDELTA_INLINE void transpose4(Quad r[4]) {
  const Quad a = __builtin_shufflevector(r[0], r[1], 0, 4, 1, 5);
  const Quad b = __builtin_shufflevector(r[0], r[1], 2, 6, 3, 7);
  const Quad c = __builtin_shufflevector(r[2], r[3], 0, 4, 1, 5);
  const Quad d = __builtin_shufflevector(r[2], r[3], 2, 6, 3, 7);
  r[0] = __builtin_shufflevector(a, c, 0, 1, 4, 5);
  r[1] = __builtin_shufflevector(a, c, 2, 3, 6, 7);
  r[2] = __builtin_shufflevector(b, d, 0, 1, 4, 5);
  r[3] = __builtin_shufflevector(b, d, 2, 3, 6, 7);
}

template <class V, class S>
KDELTA_INLINE void load_panel(const S* rows, int64_t width, int64_t K, int64_t Kp, int64_t W, float* panel) {
  for (int64_t w = 0; w < W; w += 4)
    for (int64_t d = 0; d < Kp; d += 4) {
      Quad r[4] = {};
      for (int64_t i = 0; i < 4; ++i)
        if (rows != nullptr && w + i < width)
          for (int64_t e = 0; e < 4 && d + e < K; ++e) r[i][e] = to_float(rows[(w + i) * K + d + e]);
      transpose4(r);
      for (int64_t e = 0; e < 4; ++e) std::memcpy(panel + (d + e) * W + w, &r[e], sizeof(Quad));
    }
}

template <class V, class S>
KDELTA_INLINE void store_panel(const float* panel, int64_t width, int64_t K, int64_t W, S* rows) {
  for (int64_t w = 0; w < width; w += 4)
    for (int64_t d = 0; d < K; d += 4) {
      Quad r[4];
      for (int64_t e = 0; e < 4; ++e) std::memcpy(&r[e], panel + (d + e) * W + w, sizeof(Quad));
      transpose4(r);
      for (int64_t i = 0; i < 4 && w + i < width; ++i)
        for (int64_t e = 0; e < 4 && d + e < K; ++e) rows[(w + i) * K + d + e] = from_float<S>(r[i][e]);
    }
}

// The update that waits for its successor: key and change of the last token.
template <class V>
struct Pending {
  const float* k;
  V u[ScanShape<V>::kVectors];
};

template <class V>
KDELTA_INLINE void scan_token(const Tokens& x, int64_t i, int64_t column, float* panel, Pending<V>& last) {
  constexpr int64_t NV = ScanShape<V>::kVectors, L = V::kLanes, W = ScanShape<V>::kWidth;
  const float *q = x.q + i * x.Kp, *k = x.k + i * x.Kp, *decay = x.decay + i * x.Kp, *k_last = last.k;
  const int64_t K = x.K;  // locals: the compiler must assume that a store to the panel changes what pointers reach
  V m[NV], n[NV], u[NV];
  for (int64_t j = 0; j < NV; ++j) m[j] = n[j] = V::zero(), u[j] = last.u[j];
  for (int64_t d = 0; d < K; ++d) {
    const V kp = V::set1(k_last[d]), dv = V::set1(decay[d]), kv = V::set1(k[d]), qv = V::set1(q[d]);
    for (int64_t j = 0; j < NV; ++j) {
      float* p = panel + d * W + j * L;
      const V s = V::fma(kp, u[j], V::load(p)) * dv;
      s.store(p);
      m[j] = V::fma(s, kv, m[j]);
      n[j] = V::fma(s, qv, n[j]);
    }
  }
  const V beta = V::set1(x.beta[i]), qk = V::set1(x.qk[i]);
  for (int64_t j = 0; j < NV; ++j) {
    last.u[j] = beta * (V::load(x.v + i * x.Vp + column + j * L) - m[j]);
    V::fma(qk, last.u[j], n[j]).store(x.out + i * x.Vp + column + j * L);
  }
  last.k = k;
}

template <class V>
KDELTA_INLINE void apply_pending(const Tokens& x, const Pending<V>& last, const float* panel, float* out) {
  constexpr int64_t NV = ScanShape<V>::kVectors, L = V::kLanes, W = ScanShape<V>::kWidth;
  for (int64_t d = 0; d < x.K; ++d)
    for (int64_t j = 0; j < NV; ++j)
      V::fma(V::set1(last.k[d]), last.u[j], V::load(panel + d * W + j * L)).store(out + d * W + j * L);
}

template <class F>
KDELTA_INLINE void for_snapshots(const KdaArgs& a, int64_t n, int64_t position, F&& f) {
  const auto& s = a.seq.snapshot;
  for (int64_t x = 0; !s.null() && x < s.dim(0); ++x)
    if (*s.at(x, 2) != -1 && *s.at(x, 0) == n && *s.at(x, 1) == position) f(*s.at(x, 2));
}

template <class V, class S>
KDELTA_INLINE void scan_panel(const KdaArgs& a, const Task& task, int64_t first, int64_t count, int64_t column,
                              float* panel, ScanScratch& w) {
  constexpr int64_t W = ScanShape<V>::kWidth;
  const int64_t left = task.v_end - task.v_begin - column, K = w.tokens.K;
  Pending<V> last{w.zeros, {}};
  for (auto& u : last.u) u = V::zero();
  for (int64_t i = 0; i < count; ++i) {
    scan_token<V>(w.tokens, i, column, panel, last);
    for_snapshots(a, task.n, first + i + 1, [&](int64_t slot) {
      apply_pending<V>(w.tokens, last, panel, w.snap);
      store_panel<V>(w.snap, left < W ? left : W, K, W, state_rows<S>(a, task, slot) + column * K);
    });
  }
  apply_pending<V>(w.tokens, last, panel, panel);
  round_to_pool<V, S>(panel, w.tokens.Kp * W);
}

template <class V, class S>
void scan_sequence(const KdaArgs& a, const Task& task, ScanScratch& w) {
  constexpr int64_t W = ScanShape<V>::kWidth;
  const int32_t* cu = a.seq.cu.data;
  const int64_t len = cu[task.n + 1] - cu[task.n], width = task.v_end - task.v_begin, K = w.tokens.K, Kp = w.tokens.Kp;
  const S* src = nullptr;
  if (a.seq.fresh.data[task.n] == 0) src = state_rows<S>(a, task, *a.seq.slot.at(task.n, start_column(a, task.n)));
  for (int64_t d = 0; d < Kp; ++d) w.zeros[d] = 0;
  auto width_at = [&](int64_t column) { return width - column < W ? width - column : W; };
  for (int64_t c = 0; c < width; c += W)
    load_panel<V>(src == nullptr ? src : src + c * K, width_at(c), K, Kp, W, w.panels + c * Kp);
  for (int64_t first = 0; first < len; first += kKdaChunk) {
    const int64_t count = len - first < kKdaChunk ? len - first : kKdaChunk;
    prepare<V>(a, task, cu[task.n] + first, count, w.tokens);
    for (int64_t c = 0; c < width; c += W) scan_panel<V, S>(a, task, first, count, c, w.panels + c * Kp, w);
    write_out<V>(a, task, cu[task.n] + first, count, w.tokens);
  }
  S* dst = state_rows<S>(a, task, *a.seq.slot.at(task.n, 0));
  for (int64_t c = 0; c < width; c += W) store_panel<V>(w.panels + c * Kp, width_at(c), K, W, dst + c * K);
}

}  // namespace KDELTA_KDA_ISA
}  // namespace kdelta::kda_cpu
