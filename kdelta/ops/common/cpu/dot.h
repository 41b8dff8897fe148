// fp32 projection kernel over any V of simd.h: lanes along K, one accumulator vector per output, summed across lanes at
// the end in fixed order. The bits of an output depend on its x row, its w row and V alone. Weights are read where they
// lie (f32, bf16); MX rows are dequantised to fp32, exactly, into a panel that all tokens share.
#pragma once

#include "kdelta/ops/common/cpu/dequantize.h"
#include "kdelta/ops/common/cpu/projection.h"
#include "kdelta/ops/common/cpu/simd.h"
#include "kdelta/ops/common/dispatch.h"

namespace kdelta {

// Tokens per pass over a panel: their x rows stay in L2 (16 x 7168 x 4 bytes = 459 KB).
inline constexpr int64_t kDotTokens = 16;

// fp32 panel of one thread; nothing when the weights need no dequantising.
KDELTA_INLINE int64_t dot_scratch_bytes(DType w, int64_t K) {
  return w == DType::f32 || w == DType::bf16 ? 0 : kPanelRows * K * static_cast<int64_t>(sizeof(float));
}

// sums[r][t] = dot(w[r], x[t]) for R rows and TT tokens.
template <class V, int R, int TT, class W, class X>
KDELTA_INLINE void dot_block(const W* const* w, const X* const* x, int64_t K, float (*sums)[TT]) {
  constexpr int64_t L = V::kLanes;
  V acc[R][TT];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int t = 0; t < TT; ++t) acc[r][t] = V::zero();
  auto step = [&](auto load) __attribute__((always_inline)) {
    V xv[TT];
#pragma GCC unroll 8
    for (int t = 0; t < TT; ++t) xv[t] = load(x[t]);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const V wv = load(w[r]);
#pragma GCC unroll 8
      for (int t = 0; t < TT; ++t) acc[r][t] = V::fma(wv, xv[t], acc[r][t]);
    }
  };
  int64_t k = 0;
  for (; k + L <= K; k += L) step([&](auto* p) __attribute__((always_inline)) { return V::load(p + k); });
  if (k < K) step([&](auto* p) __attribute__((always_inline)) { return V::load_n(p + k, K - k); });
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int t = 0; t < TT; ++t) sums[r][t] = acc[r][t].sum();
}

// Outputs of R weight rows starting at n for TT tokens starting at t0.
template <class V, int R, int TT, class W, class X, class Out>
KDELTA_INLINE void dot_outputs(const Projection& p, const W* const* w, int64_t n, int64_t t0) {
  const X* x[TT];
  float sums[R][TT];
  for (int t = 0; t < TT; ++t) x[t] = p.template token<X>(t0 + t);
  dot_block<V, R, TT>(w, x, p.w.cols, sums);
  for (int t = 0; t < TT; ++t) {
    Out* out = p.out.template at<Out>(t0 + t) + n;
    const Out* addend = p.addend.null() ? nullptr : p.addend.template at<const Out>(t0 + t) + n;
    for (int r = 0; r < R; ++r)
      out[r] = from_float<Out>(addend == nullptr ? sums[r][t] : sums[r][t] + to_float(addend[r]));
  }
}

// Rows [n, n + count) with count <= kPanelRows, all tokens. w[r] points at row n + r.
template <class V, class W, class X, class Out>
KDELTA_INLINE void dot_panel(const Projection& p, const W* const* w, int64_t n, int64_t count) {
  constexpr int kTokens = V::kLanes == 16 ? 4 : 2;  // 4 x 4 accumulators need 32 registers, 4 x 2 fit 16
  for (int64_t begin = 0; begin < p.T; begin += kDotTokens) {
    const int64_t end = begin + kDotTokens < p.T ? begin + kDotTokens : p.T;
    int64_t r = 0;
    for (; r + 4 <= count; r += 4) {
      int64_t t = begin;
      for (; t + kTokens <= end; t += kTokens) dot_outputs<V, 4, kTokens, W, X, Out>(p, w + r, n + r, t);
      for (; t < end; ++t) dot_outputs<V, 4, 1, W, X, Out>(p, w + r, n + r, t);
    }
    for (; r < count; ++r)
      for (int64_t t = begin; t < end; ++t) dot_outputs<V, 1, 1, W, X, Out>(p, w + r, n + r, t);
  }
}

// Rows [n, n + count) of any weight dtype; `panel` is dot_scratch_bytes of this thread.
template <class V, class X, class Out>
void project_panel_f32(const Projection& p, int64_t n, int64_t count, float* panel) {
  if (p.w.dtype == DType::bf16) {
    const bf16* rows[kPanelRows];
    for (int64_t r = 0; r < count; ++r) rows[r] = reinterpret_cast<const bf16*>(p.w.row(n + r));
    return dot_panel<V, bf16, X, Out>(p, rows, n, count);
  }
  const float* rows[kPanelRows];
  for (int64_t r = 0; r < count; ++r) {
    if (p.w.dtype == DType::f32) {
      rows[r] = reinterpret_cast<const float*>(p.w.row(n + r));
    } else {
      dequantize_mx<V>(p.w, n + r, panel + r * p.w.cols);
      rows[r] = panel + r * p.w.cols;
    }
  }
  dot_panel<V, float, X, Out>(p, rows, n, count);
}

// Panels [begin, end) of p.
template <class V>
void project_panels_f32(const Projection& p, int64_t begin, int64_t end, float* panel) {
  dispatch_activation(p.x.dtype, [&](auto x) {
    dispatch_activation(p.out.dtype, [&](auto out) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t n = i * kPanelRows;
        const int64_t count = p.w.rows - n < kPanelRows ? p.w.rows - n : kPanelRows;
        project_panel_f32<V, decltype(x), decltype(out)>(p, n, count, panel);
      }
    });
  });
}

}  // namespace kdelta
