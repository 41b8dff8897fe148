// SiTU over a vector type, three quotients and a sigmoid with one division, and the loop over two rows that it shares
// with the other activations.
#pragma once

#include <algorithm>

#include "kdelta/ops/common/cpu/simd_math.h"

namespace kdelta {

// beta * tanh(gate/beta) * sigmoid(gate) * (kCapUp ? linear_beta * tanh(up/linear_beta) : up), fp32.
template <class V, bool kCapUp>
struct Situ {
  V scale, inverse_beta, inverse_linear;
  explicit KDELTA_INLINE Situ(float beta, float linear_beta)
      : scale(V::set1(kCapUp ? beta * linear_beta : beta)),
        inverse_beta(V::set1(1 / beta)),
        inverse_linear(V::set1(kCapUp ? 1 / linear_beta : 0)) {}
  KDELTA_INLINE V operator()(V gate, V up) const {
    const simd::Ratio<V> left = simd::tanh_ratio(gate * inverse_beta);
    // Infinite for gate < -88.7, which makes the quotient 0.
    const V sigmoid_bottom = V::set1(1.0f) + simd::exp(V::zero() - gate);
    if constexpr (kCapUp) {
      const simd::Ratio<V> right = simd::tanh_ratio(up * inverse_linear);
      return scale * left.top * right.top / (left.bottom * right.bottom * sigmoid_bottom);
    }
    return scale * left.top * up / (left.bottom * sigmoid_bottom);
  }
};

// out = f(gate, up), two vectors at a time: their chains of arithmetic overlap.
template <class V, class F, class Gate, class Up, class Out>
KDELTA_INLINE void gated_row(const F& f, const Gate* gate, const Up* up, Out* out, int64_t n) {
  constexpr int64_t L = V::kLanes;
  int64_t i = 0;
  for (; i + 2 * L <= n; i += 2 * L)
    V::store_pair(f(V::load(gate + i), V::load(up + i)), f(V::load(gate + i + L), V::load(up + i + L)), out + i);
  for (; i < n; i += L) {
    const int64_t m = std::min(L, n - i);
    simd::store_lanes(f(simd::load_lanes<V>(gate + i, m), simd::load_lanes<V>(up + i, m)), out + i, m);
  }
}

}  // namespace kdelta
