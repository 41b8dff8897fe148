// The vector kernel of the activations over any V of simd.h: elementwise, so rows are cut into tiles of columns and a
// wide single row (decode) still feeds every thread.
#pragma once

#include <algorithm>

#include "kdelta/ops/activation/variants.h"
#include "kdelta/ops/common/cpu/parallel.h"
#include "kdelta/ops/common/cpu/situ.h"
#include "kdelta/ops/common/dispatch.h"

namespace kdelta {

template <class V>
struct Swiglu {
  KDELTA_INLINE V operator()(V gate, V up) const { return simd::silu(gate) * up; }
};

template <class V>
struct SigmoidGate {
  KDELTA_INLINE V operator()(V gate, V up) const { return simd::sigmoid(gate) * up; }
};

// Pieces [begin, end): piece p is tile p % tiles of row p / tiles.
template <class V, class F>
void activation_pieces(const ActivationArgs& a, const F& f, int64_t tile, int64_t begin, int64_t end) {
  const int64_t N = a.gate.dim(1), tiles = (N + tile - 1) / tile;
  dispatch_activation(a.gate.dtype, [&](auto gate) {
    dispatch_activation(a.up.dtype, [&](auto up) {
      dispatch_activation(a.out.dtype, [&](auto out) {
        for (int64_t p = begin; p < end; ++p) {
          const int64_t t = p / tiles, c = p % tiles * tile;
          gated_row<V>(f, a.gate.template at<const decltype(gate)>(t) + c, a.up.template at<const decltype(up)>(t) + c,
                       a.out.template at<decltype(out)>(t) + c, std::min(tile, N - c));
        }
      });
    });
  });
}

template <class V, class F>
void activation_run(const Exec& ex, const ActivationArgs& a, const F& f) {
  const int64_t T = a.gate.dim(0), N = a.gate.dim(1);
  if (N == 0) return;
  // 8192 columns are 48 KB of bf16 traffic: long enough to hide the hand-out, short enough that one row keeps threads
  // busy.
  const int64_t tile = std::min<int64_t>(N, 8192);
  parallel_for(ex, T * ((N + tile - 1) / tile), 8192 / tile,
               [&](int64_t begin, int64_t end) { activation_pieces<V>(a, f, tile, begin, end); });
}

template <class V>
void activation_cpu(const Exec& ex, const ActivationArgs& a) {
  switch (a.kind) {
    case ActivationKind::swiglu:
      return activation_run<V>(ex, a, Swiglu<V>{});
    case ActivationKind::sigmoid_gate:
      return activation_run<V>(ex, a, SigmoidGate<V>{});
    case ActivationKind::situ:
      if (a.linear_beta > 0) return activation_run<V>(ex, a, Situ<V, true>(a.beta, a.linear_beta));
      return activation_run<V>(ex, a, Situ<V, false>(a.beta, 0));
  }
  KDELTA_UNREACHABLE("activation kind", a.kind);
}

}  // namespace kdelta
