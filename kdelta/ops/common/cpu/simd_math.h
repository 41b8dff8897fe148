// Elementary functions over the vector types of simd.h. exp: Cody-Waite reduction and a degree-6 polynomial, error below 2 ulp
// on [-87.3, 88.7]; below it returns 0, above it infinity. NaN stays NaN in all of them (the operand order of min/max sees to it).
#pragma once

#include "kdelta/ops/common/cpu/simd.h"

namespace kdelta::simd {

template <class V>
KDELTA_INLINE V exp(V x) {
  const V hi = V::set1(88.72283f), lo = V::set1(-87.33654f);
  // min(bound, x) keeps x when x is NaN: both instruction sets return the second operand then.
  const V c = V::max(lo, V::min(hi, x));
  const V n = (c * V::set1(1.44269504f)).round();
  V r = V::fma(n, V::set1(-0.693359375f), c);
  r = V::fma(n, V::set1(2.12194440e-4f), r);
  V p = V::set1(1.9875691500e-4f);
  p = V::fma(p, r, V::set1(1.3981999507e-3f));
  p = V::fma(p, r, V::set1(8.3334519073e-3f));
  p = V::fma(p, r, V::set1(4.1665795894e-2f));
  p = V::fma(p, r, V::set1(1.6666665459e-1f));
  p = V::fma(p, r, V::set1(5.0000001201e-1f));
  p = V::fma(p, r * r, r) + V::set1(1.0f);
  // 2^n in two halves: n reaches 128 at the top.
  const V half = (n * V::set1(0.5f)).round();
  V y = p * half.pow2i() * (n - half).pow2i();
  y = V::select_gt(lo, x, V::zero(), y);
  return V::select_gt(x, hi, V::set1(__builtin_inff()), y);
}

template <class V>
KDELTA_INLINE V sigmoid(V x) {
  return V::set1(1.0f) / (V::set1(1.0f) + exp(V::zero() - x));
}

template <class V>
KDELTA_INLINE V silu(V x) {
  return x * sigmoid(x);
}

// tanh(x) = 1 - 2/(e^2x + 1) away from 0; a polynomial in x^2 near it, where that form cancels.
template <class V>
KDELTA_INLINE V tanh(V x) {
  const V one = V::set1(1.0f);
  const V big = one - V::set1(2.0f) / (exp(x + x) + one);
  const V s = x * x;
  V p = V::set1(-5.70498872745e-3f);
  p = V::fma(p, s, V::set1(2.06390887954e-2f));
  p = V::fma(p, s, V::set1(-5.37397155531e-2f));
  p = V::fma(p, s, V::set1(1.33314422036e-1f));
  p = V::fma(p, s, V::set1(-3.33332819422e-1f));
  const V small = V::fma(p * s, x, x);
  return V::select_gt(V::set1(0.625f), x.abs(), small, big);
}

}  // namespace kdelta::simd
