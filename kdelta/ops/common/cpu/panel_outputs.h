// The end of a panel of 16 weight rows in the bf16 kernels: accumulators to outputs, and the rows that were not for
// them.
#pragma once

#include "kdelta/ops/common/cpu/dot.h"

namespace kdelta {

// Rows of the panel at n that are stored: those below N whose scales the kernel can hold.
KDELTA_INLINE __mmask16 stored_rows(const Projection& p, int64_t n, __mmask16 outside) {
  const int64_t left = p.w.rows - n;
  return static_cast<__mmask16>((left >= 16 ? 0xffffu : (1u << left) - 1) & ~unsigned{outside});
}

// out[r] = sum lane r (+ addend[r]) for the rows of the mask.
template <class Out>
KDELTA_INLINE void store_outputs(__m512 sum, const Out* addend, Out* out, __mmask16 rows) {
  if constexpr (sizeof(Out) == 4) {
    if (addend != nullptr) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(rows, addend));
    _mm512_mask_storeu_ps(out, rows, sum);
  } else {
    if (addend != nullptr) sum = _mm512_add_ps(sum, simd::Avx512::widen(_mm256_maskz_loadu_epi16(rows, addend)).v);
    _mm256_mask_storeu_epi16(out, rows, simd::Avx512{sum}.narrow());
  }
}

// Rows whose scales have no exact bf16 form: dequantised to fp32 and summed as the fp32 kernel does.
template <class Out>
KDELTA_INLINE void exact_rows(const Projection& p, int64_t n, __mmask16 rows, float* row) {
  for (int64_t r = 0; r < 16; ++r) {
    if ((rows >> r & 1) == 0) continue;
    dequantize_row(p.w, n + r, row);
    const float* w[1] = {row};
    for (int64_t t = 0; t < p.T; ++t) dot_outputs<simd::Avx512, 1, 1, float, bf16, Out>(p, w, n + r, t);
  }
}

}  // namespace kdelta
