// SimdProbe of a vector type V.
#pragma once

#include "kdelta/ops/common/cpu/simd_math.h"
#include "kdelta/ops/common/cpu/test_simd.h"

namespace kdelta::test {

// F: a type with a static V of(V).
template <class V, class F>
void simd_map(const float* x, float* y, int64_t n) {
  constexpr int64_t L = V::kLanes;
  for (; n >= L; n -= L, x += L, y += L) F::of(V::load(x)).store(y);
  if (n > 0) F::of(V::load_n(x, n)).store_n(y, n);
}

#define KDELTA_SIMD_FUNCTION(Name, expression)            \
  template <class V>                                      \
  struct Name {                                           \
    static KDELTA_INLINE V of(V x) { return expression; } \
  };
KDELTA_SIMD_FUNCTION(SimdExp, simd::exp(x))
KDELTA_SIMD_FUNCTION(SimdSigmoid, simd::sigmoid(x))
KDELTA_SIMD_FUNCTION(SimdSilu, simd::silu(x))
KDELTA_SIMD_FUNCTION(SimdTanh, simd::tanh(x))
KDELTA_SIMD_FUNCTION(SimdRound, x.round())
KDELTA_SIMD_FUNCTION(SimdPow2i, x.pow2i())
KDELTA_SIMD_FUNCTION(SimdSqrt, x.sqrt())
KDELTA_SIMD_FUNCTION(SimdAbs, x.abs())
#undef KDELTA_SIMD_FUNCTION

template <class V>
SimdProbe simd_probe(const char* name, IsaLevel isa) {
  return {
      .name = name,
      .isa = isa,
      .lanes = V::kLanes,
      .exp = simd_map<V, SimdExp<V>>,
      .sigmoid = simd_map<V, SimdSigmoid<V>>,
      .silu = simd_map<V, SimdSilu<V>>,
      .tanh = simd_map<V, SimdTanh<V>>,
      .round = simd_map<V, SimdRound<V>>,
      .pow2i = simd_map<V, SimdPow2i<V>>,
      .sqrt = simd_map<V, SimdSqrt<V>>,
      .abs = simd_map<V, SimdAbs<V>>,
      .min = [](const float* a, const float* b, float* y) { V::min(V::load(a), V::load(b)).store(y); },
      .max = [](const float* a, const float* b, float* y) { V::max(V::load(a), V::load(b)).store(y); },
      .select_gt = [](const float* a, const float* b, const float* x, const float* y,
                      float* z) { V::select_gt(V::load(a), V::load(b), V::load(x), V::load(y)).store(z); },
      .all_gt = [](const float* a, const float* b) { return V::all_gt(V::load(a), V::load(b)); },
      .ldexp = [](const float* x, const float* n, float* y) { V::ldexp(V::load(x), V::load(n)).store(y); },
      .fma = [](const float* a, const float* b, const float* c,
                float* y) { V::fma(V::load(a), V::load(b), V::load(c)).store(y); },
      .sum = [](const float* x) { return V::load(x).sum(); },
      .max_lane = [](const float* x) { return V::load(x).max_lane(); },
      .copy_f32 = [](const float* x, float* y, int64_t n) { V::load_n(x, n).store_n(y, n); },
      .narrow_n = [](const float* x, bf16* y, int64_t n) { V::load_n(x, n).store_n(y, n); },
      .widen_n = [](const bf16* x, float* y, int64_t n) { V::load_n(x, n).store_n(y, n); },
      .narrow = [](const float* x, bf16* y) { V::load(x).store(y); },
      .widen = [](const bf16* x, float* y) { V::load(x).store(y); },
      .narrow_pair = [](const float* x, bf16* y) { V::store_pair(V::load(x), V::load(x + V::kLanes), y); },
  };
}

}  // namespace kdelta::test
