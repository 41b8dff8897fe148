// The vector kernel of gated_norm over any V of simd.h. A row (one head of one token) is widened into an fp32 buffer in
// L1, its squares are summed, then it is scaled and gated. The buffer keeps x + residual in fp32 and the type
// combinations few.
#pragma once

#include <algorithm>

#include "kdelta/ops/common/cpu/parallel.h"
#include "kdelta/ops/common/cpu/rms_norm.h"
#include "kdelta/ops/common/cpu/simd_math.h"
#include "kdelta/ops/common/dispatch.h"
#include "kdelta/ops/gated_norm/variants.h"

namespace kdelta {

template <class V, class In, class Out>
KDELTA_INLINE void gated_norm_copy(const In* in, Out* out, int64_t D) {
  constexpr int64_t L = V::kLanes;
  int64_t d = 0;
  for (; d + L <= D; d += L) V::load(in + d).store(out + d);
  if (d < D) V::load_n(in + d, D - d).store_n(out + d, D - d);
}

template <class V, class In>
KDELTA_INLINE void gated_norm_add(const In* in, float* s, int64_t D) {
  constexpr int64_t L = V::kLanes;
  int64_t d = 0;
  for (; d + L <= D; d += L) (V::load(s + d) + V::load(in + d)).store(s + d);
  if (d < D) (V::load_n(s + d, D - d) + V::load_n(in + d, D - d)).store_n(s + d, D - d);
}

// The optional parts: s += residual, sum_out = s.
template <class V>
void gated_norm_prenorm(const GatedNormArgs& a, int64_t t, int64_t h, float* s, int64_t D) {
  if (!a.residual.null())
    dispatch_activation(a.residual.dtype,
                        [&](auto e) { gated_norm_add<V>(a.residual.template at<const decltype(e)>(t, h), s, D); });
  if (!a.sum_out.null())
    dispatch_activation(a.sum_out.dtype,
                        [&](auto e) { gated_norm_copy<V>(s, a.sum_out.template at<decltype(e)>(t, h), D); });
}

// n lanes of (s * scale * weight + bias) * act(gate) at column d.
template <class V, GateActivation kAct, class Gate>
KDELTA_INLINE V gated_norm_value(const GatedNormArgs& a, const float* s, V scale, const Gate* gate, int64_t d,
                                 int64_t n) {
  V y = simd::load_lanes<V>(s + d, n) * scale;
  if (!a.weight.null()) y = y * simd::load_lanes<V>(a.weight.data + d, n);
  if (!a.bias.null()) y = y + simd::load_lanes<V>(a.bias.data + d, n);
  const V g = simd::load_lanes<V>(gate + d, n);
  return y * (kAct == GateActivation::silu ? simd::silu(g) : simd::sigmoid(g));
}

template <class V, GateActivation kAct, class In, class Gate, class Out>
KDELTA_INLINE void gated_norm_row(const GatedNormArgs& a, int64_t t, int64_t h, float* s) {
  constexpr int64_t L = V::kLanes;
  const int64_t D = a.x.dim(2);
  gated_norm_copy<V>(a.x.template at<const In>(t, h), s, D);
  if (!a.residual.null() || !a.sum_out.null()) gated_norm_prenorm<V>(a, t, h, s, D);
  const V scale = V::set1(rms_scale<V>(s, D, a.eps));
  const Gate* gate = a.gate.template at<const Gate>(t, h);
  Out* out = a.out.template at<Out>(t, h);
  int64_t d = 0;
  for (; d + 2 * L <= D; d += 2 * L)
    V::store_pair(gated_norm_value<V, kAct>(a, s, scale, gate, d, L),
                  gated_norm_value<V, kAct>(a, s, scale, gate, d + L, L), out + d);
  for (; d < D; d += L) {
    const int64_t n = std::min(L, D - d);
    simd::store_lanes(gated_norm_value<V, kAct>(a, s, scale, gate, d, n), out + d, n);
  }
}

template <class V>
void gated_norm_zero(const AnyView& out, int64_t t, int64_t h) {
  dispatch_activation(out.dtype, [&](auto e) {
    using E = decltype(e);
    E* row = out.template at<E>(t, h);
    for (int64_t d = 0; d < out.dim(2); ++d) row[d] = E{};
  });
}

// Rows [begin, end) of the T * H rows; s is this thread's buffer.
template <class V, GateActivation kAct>
void gated_norm_rows(const GatedNormArgs& a, int64_t begin, int64_t end, float* s) {
  const int64_t H = a.x.dim(1), live = (a.live.null() ? a.x.dim(0) : a.live.data[0]) * H;
  dispatch_activation(a.x.dtype, [&](auto in) {
    dispatch_activation(a.gate.dtype, [&](auto gate) {
      dispatch_activation(a.out.dtype, [&](auto out) {
        for (int64_t r = begin; r < std::min(end, live); ++r)
          gated_norm_row<V, kAct, decltype(in), decltype(gate), decltype(out)>(a, r / H, r % H, s);
      });
    });
  });
  for (int64_t r = std::max(begin, live); r < end; ++r) {
    gated_norm_zero<V>(a.out, r / H, r % H);
    if (!a.sum_out.null()) gated_norm_zero<V>(a.sum_out, r / H, r % H);
  }
}

template <class V>
void gated_norm_cpu(const Exec& ex, const GatedNormArgs& a, const GatedNormDesc& desc, void* scratch) {
  const int64_t stride = gated_norm_scratch_stride(desc);
  // 8192 elements are 48 KB of bf16 traffic: long enough to hide the hand-out of a piece, short enough to balance.
  parallel_for_ranked(ex, a.x.dim(0) * a.x.dim(1), 8192 / a.x.dim(2) + 1, [&](int rank, int64_t begin, int64_t end) {
    float* s = static_cast<float*>(scratch) + rank * stride;
    switch (a.activation) {
      case GateActivation::sigmoid:
        return gated_norm_rows<V, GateActivation::sigmoid>(a, begin, end, s);
      case GateActivation::silu:
        return gated_norm_rows<V, GateActivation::silu>(a, begin, end, s);
    }
    KDELTA_UNREACHABLE("gate activation", a.activation);
  });
}

}  // namespace kdelta
