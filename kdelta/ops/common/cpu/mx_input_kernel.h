// The kernel of common/mx_input.h over any V of simd.h.
#pragma once

#include "kdelta/ops/common/cpu/mx_block.h"
#include "kdelta/ops/common/cpu/mx_input.h"
#include "kdelta/ops/common/dispatch.h"

namespace kdelta {

template <class V, class Out>
KDELTA_INLINE void store_mx_values(DType format, const uint8_t* codes, uint8_t scale, Out* out) {
  alignas(64) float values[kMxBlock];
  fp8_block<V>(format, codes, scale_value(scale), values);
  for (int i = 0; i < kMxBlock; i += V::kLanes) V::load(values + i).store(out + i);
}

template <class V, class Out>
void mx_values_of_codes(const Exec& ex, const AnyConstView& x, const View<const uint8_t>& scale, const AnyView& out) {
  for_mx_tiles(ex, x.dim(0), x.dim(1), [&](int64_t t, int64_t first, int64_t count) {
    const auto* codes = x.at<const uint8_t>(t);
    for (int64_t c = first; c < first + count; c += kMxBlock)
      store_mx_values<V>(x.dtype, codes + c, *scale.at(t, c / kMxBlock), out.template at<Out>(t, c));
  });
}

template <class V, class F, class In, class Out>
void mx_values_of(const Exec& ex, const AnyConstView& x, const MxInput& input, const AnyView& out) {
  const uint32_t bump = scale_bump<F>(input.rule);
  for_mx_tiles(ex, x.dim(0), x.dim(1), [&](int64_t t, int64_t first, int64_t count) {
    const In* in = x.at<const In>(t);
    for (int64_t c = first; c < first + count; c += kMxBlock) {
      uint8_t codes[kMxBlock];
      const uint8_t scale = quantise_block<V, F>(in + c, bump, codes);
      store_mx_values<V>(input.format, codes, scale, out.template at<Out>(t, c));
    }
  });
}

template <class V>
void mx_input_cpu(const Exec& ex, const AnyConstView& x, const View<const uint8_t>& scale, const MxInput& input,
                  const AnyView& out) {
  dispatch_activation(out.dtype, [&](auto o) {
    using Out = decltype(o);
    if (x.dtype == DType::f8_e4m3 || x.dtype == DType::f8_e5m2) return mx_values_of_codes<V, Out>(ex, x, scale, out);
    dispatch_activation(x.dtype, [&](auto in) {
      using In = decltype(in);
      if (input.format == DType::f8_e4m3) return mx_values_of<V, MxE4m3, In, Out>(ex, x, input, out);
      mx_values_of<V, MxE5m2, In, Out>(ex, x, input, out);
    });
  });
}

}  // namespace kdelta
