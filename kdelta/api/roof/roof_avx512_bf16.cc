#include <immintrin.h>

#include "kdelta/api/roof/roof.h"

namespace kdelta::bench {

double dot_rounds_avx512_bf16(int64_t rounds) {
  constexpr int kChains = 16;  // latency 6, two a cycle at most
  __m512 acc[kChains];
#pragma GCC unroll 16
  for (int c = 0; c < kChains; ++c) acc[c] = _mm512_setzero_ps();
  __m512i ones = _mm512_set1_epi16(0x3f80);
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 16
    for (int c = 0; c < kChains; ++c) {
      const auto x = reinterpret_cast<__m512bh>(ones);
      acc[c] = _mm512_dpbf16_ps(acc[c], x, x);
      __asm__ volatile("" : "+v"(acc[c]));
    }
  }
  return 64.0 * kChains * static_cast<double>(rounds);
}

}  // namespace kdelta::bench
