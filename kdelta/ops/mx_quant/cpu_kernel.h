// The vector kernels of mx_quantize and mx_dequantize over any V of simd.h.
#pragma once

#include "kdelta/ops/common/cpu/mx_block.h"
#include "kdelta/ops/common/cpu/situ.h"
#include "kdelta/ops/common/dispatch.h"
#include "kdelta/ops/mx_quant/variants.h"

namespace kdelta {

// Columns that are activated before they are quantised: enough that their arithmetic overlaps, few enough to stay in
// L1.
inline constexpr int64_t kMxStrip = 256;

// The input as it is: n columns at c, from memory or, when the last block is short, from `copy` with zeros behind them.
template <class In>
struct MxPlainInput {
  using Element = In;
  KDELTA_INLINE const In* strip(const MxQuantizeArgs& a, int64_t t, int64_t c, int64_t n, In* copy) const {
    const In* x = a.x.template at<const In>(t) + c;
    if (n % kMxBlock == 0) return x;
    std::memcpy(copy, x, static_cast<size_t>(n) * sizeof(In));
    std::memset(copy + n, 0, static_cast<size_t>(kMxStrip - n) * sizeof(In));
    return copy;
  }
};

// SiTU of both halves of a row, rounded to bf16.
template <class V, class In, bool kCapUp>
struct MxSituInput {
  using Element = bf16;
  Situ<V, kCapUp> situ;
  int64_t gate, up;  // first columns
  KDELTA_INLINE explicit MxSituInput(const MxQuantizeArgs& a)
      : situ(a.beta, a.linear_beta), gate(a.activate_left ? 0 : mx_width(a)), up(a.activate_left ? mx_width(a) : 0) {}
  KDELTA_INLINE const bf16* strip(const MxQuantizeArgs& a, int64_t t, int64_t c, int64_t n, bf16* copy) const {
    const In* x = a.x.template at<const In>(t) + c;
    gated_row<V>(situ, x + gate, x + up, copy, n);
    if (n % kMxBlock != 0) std::memset(copy + n, 0, static_cast<size_t>(kMxStrip - n) * sizeof(bf16));
    return copy;
  }
};

// A strip of n columns, whole blocks of x, to codes and scales.
template <class V, class F, class In>
KDELTA_INLINE void quantise_strip(const In* x, int64_t n, uint32_t bump, uint8_t* codes, uint8_t* scale) {
  constexpr int kPerByte = F::sign_bit == 3 ? 2 : 1;
  int64_t i = 0;
  for (; i + kMxBlock <= n; i += kMxBlock)
    scale[i / kMxBlock] = quantise_block<V, F>(x + i, bump, codes + i / kPerByte);
  if (i == n) return;
  uint8_t bytes[kMxBlock];
  scale[i / kMxBlock] = quantise_block<V, F>(x + i, bump, bytes);
  std::memcpy(codes + i / kPerByte, bytes, static_cast<size_t>((n - i + kPerByte - 1) / kPerByte));
}

template <class V, class F, class Input>
void mx_quantize_format(const Exec& ex, const MxQuantizeArgs& a, const Input& input) {
  const int64_t N = mx_width(a), blocks = (N + kMxBlock - 1) / kMxBlock;
  const uint32_t bump = scale_bump<F>(a.rule);
  constexpr int kPerByte = F::sign_bit == 3 ? 2 : 1;
  for_mx_tiles(ex, mx_rows(a), N, [&](int64_t t, int64_t first, int64_t count) {
    uint8_t *codes = a.codes.at(t), *scale = a.scale.at(t);
    alignas(64) typename Input::Element copy[kMxStrip];
    for (int64_t c = first; c < first + count; c += kMxStrip) {
      const int64_t n = std::min(kMxStrip, N - c);
      quantise_strip<V, F>(input.strip(a, t, c, n, copy), n, bump, codes + c / kPerByte, scale + c / kMxBlock);
    }
    if (first + count == N && a.scale.dim(1) > blocks) scale[blocks] = 0;
  });
}

template <class V, class Input>
void mx_quantize_input(const Exec& ex, const MxQuantizeArgs& a, const Input& input) {
  switch (a.format) {
    case DType::f8_e4m3:
      return mx_quantize_format<V, MxE4m3>(ex, a, input);
    case DType::f8_e5m2:
      return mx_quantize_format<V, MxE5m2>(ex, a, input);
    case DType::f4_e2m1:
      return mx_quantize_format<V, MxE2m1>(ex, a, input);
    default:
      KDELTA_UNREACHABLE("MX format", a.format);
  }
}

template <class V>
void mx_quantize_cpu(const Exec& ex, const MxQuantizeArgs& a) {
  dispatch_activation(a.x.dtype, [&](auto in) {
    using In = decltype(in);
    if (!a.situ) return mx_quantize_input<V>(ex, a, MxPlainInput<In>{});
    if (a.linear_beta > 0) return mx_quantize_input<V>(ex, a, MxSituInput<V, In, true>(a));
    return mx_quantize_input<V>(ex, a, MxSituInput<V, In, false>(a));
  });
}

// 32 columns at c of a row to `out`.
template <class V>
KDELTA_INLINE void dequantise_block(const MxDequantizeArgs& a, int64_t t, int64_t c, float* out) {
  const float scale = scale_value(*a.scale.at(t, c / kMxBlock));
  if (a.format == DType::f4_e2m1) return fp4_block<V>(a.codes.at(t, c / 2), scale, out);
  fp8_block<V>(a.format, a.codes.at(t, c), scale, out);
}

// The same for n < 32 columns, one by one: nothing behind them is read.
KDELTA_INLINE void dequantise_short_block(const MxDequantizeArgs& a, int64_t t, int64_t c, int64_t n, float* out) {
  const float scale = scale_value(*a.scale.at(t, c / kMxBlock));
  for (int64_t i = 0; i < n; ++i) {
    if (a.format == DType::f4_e2m1)
      out[i] = kFp4Values[(*a.codes.at(t, (c + i) / 2) >> (i % 2 * 4)) & 15] * scale;
    else
      out[i] = (a.format == DType::f8_e4m3 ? kE4m3Values : kE5m2Values)[*a.codes.at(t, c + i)] * scale;
  }
}

template <class V>
void mx_dequantize_cpu(const Exec& ex, const MxDequantizeArgs& a) {
  const int64_t N = a.out.dim(1);
  dispatch_activation(a.out.dtype, [&](auto o) {
    using Out = decltype(o);
    for_mx_tiles(ex, a.out.dim(0), N, [&](int64_t t, int64_t first, int64_t count) {
      Out* out = a.out.template at<Out>(t);
      alignas(64) float values[kMxBlock];
      for (int64_t c = first; c < first + count; c += kMxBlock) {
        const int64_t n = std::min<int64_t>(kMxBlock, N - c);
        if (n == kMxBlock)
          dequantise_block<V>(a, t, c, values);
        else
          dequantise_short_block(a, t, c, n, values);
        for (int64_t i = 0; i < n; i += V::kLanes) {
          const int64_t m = std::min<int64_t>(V::kLanes, n - i);
          simd::store_lanes(simd::load_lanes<V>(values + i, m), out + c + i, m);
        }
      }
    });
  });
}

}  // namespace kdelta
