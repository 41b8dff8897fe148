// A register-only multiply-add loop over any V of simd.h: 12 independent chains cover the latency of every current
// core.
#pragma once

#include "kdelta/ops/common/cpu/simd.h"

namespace kdelta::bench {

template <class V>
double fma_rounds(int64_t rounds) {
  constexpr int kChains = 12;
  V acc[kChains];
#pragma GCC unroll 12
  for (int c = 0; c < kChains; ++c) acc[c] = V::set1(static_cast<float>(c));
  const V a = V::set1(0.999f), b = V::set1(0.001f);
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) {
      acc[c] = V::fma(acc[c], a, b);
      __asm__ volatile("" : "+v"(acc[c].v));  // or the compiler merges or drops rounds
    }
  }
  return 2.0 * V::kLanes * kChains * static_cast<double>(rounds);
}

}  // namespace kdelta::bench
