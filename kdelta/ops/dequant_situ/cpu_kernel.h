// The vector kernel of dequant_situ over any V of simd.h: a row is dequantised and activated into scratch, with its
// largest magnitude beside it, then quantised from L1.
#pragma once

#include <algorithm>

#include "kdelta/core/check.h"
#include "kdelta/ops/common/cpu/int_lanes.h"
#include "kdelta/ops/common/cpu/parallel.h"
#include "kdelta/ops/common/cpu/situ.h"
#include "kdelta/ops/dequant_situ/variants.h"

namespace kdelta {

// m elements as floats, zeros behind them.
template <class V, class In>
KDELTA_INLINE V load_as_float(const In* p, int64_t m) {
  if constexpr (std::is_same_v<In, bf16>) {
    return simd::load_lanes<V>(p, m);
  } else {
    float lanes[V::kLanes] = {};
    if (m == V::kLanes)
      for (int i = 0; i < V::kLanes; ++i) lanes[i] = static_cast<float>(p[i]);
    else
      for (int64_t i = 0; i < m; ++i) lanes[i] = static_cast<float>(p[i]);
    return V::load(lanes);
  }
}

// One parameter for each column, one for all, or none.
struct ColumnParameter {
  const float* data = nullptr;
  bool broadcast = false;
  explicit KDELTA_INLINE ColumnParameter(const View<const float>& v, int64_t expert)
      : data(v.null() || v.shape.rank == 1 ? v.data : v.at(expert)), broadcast(v.shape.rank == 1 && v.dim(0) == 1) {}
  template <class V>
  KDELTA_INLINE V load(int64_t c, int64_t m) const {
    return broadcast ? V::set1(*data) : simd::load_lanes<V>(data + c, m);
  }
};

template <class V, class In>
struct Dequantised {
  const In* x;
  ColumnParameter weight, bias;
  V activation;
  KDELTA_INLINE V load(int64_t c, int64_t m) const {
    V v = load_as_float<V>(x + c, m);
    if constexpr (!std::is_same_v<In, bf16>) {
      v = v * weight.template load<V>(c, m);
      if constexpr (sizeof(In) == 4) v = v * activation;
      if (bias.data != nullptr) v = v + bias.template load<V>(c, m);
    }
    return v;
  }
};

// Returns the bits of the row's largest magnitude.
template <class V, bool kCapUp, class In>
KDELTA_INLINE int32_t dequant_situ_values(const DequantSituArgs& a, const Dequantised<V, In>& in, int64_t N, float* z) {
  const Situ<V, kCapUp> situ(a.beta, a.linear_beta);
  const int64_t gate = a.activate_left ? 0 : N, up = N - gate;
  using I = IntLanes<V>;
  typename I::Ints most = I::magnitude(V::zero());
  for (int64_t n = 0; n < N; n += V::kLanes) {
    const int64_t m = std::min<int64_t>(V::kLanes, N - n);
    const V y = situ(in.load(gate + n, m), in.load(up + n, m));
    y.store(z + n);  // scratch is whole vectors long
    // Behind the end a bias may have been broadcast.
    if (m == V::kLanes) {
      most = I::max(most, I::magnitude(y));
    } else {
      for (int64_t i = m; i < V::kLanes; ++i) z[n + i] = 0;
      most = I::max(most, I::magnitude(V::load(z + n)));
    }
  }
  return I::max_lane(most);
}

template <class V>
KDELTA_INLINE void store_int8(V q, int8_t* out, int64_t m) {
  using I = IntLanes<V>;
  uint8_t bytes[V::kLanes];
  I::store_bytes(I::nearest(q) & 0xff, bytes);
  std::memcpy(out, bytes, static_cast<size_t>(m));
}

template <class V>
KDELTA_INLINE void quantise_dynamic(const float* z, int32_t amax_bits, int64_t N, int8_t* y, float* scale) {
  *scale = std::bit_cast<float>(amax_bits) / 127;
  if (*scale == 0) *scale = 1;
  if (amax_bits >= 0x7f800000) {
    std::memset(y, 0, static_cast<size_t>(N));
    return;
  }
  const V s = V::set1(*scale);
  for (int64_t n = 0; n < N; n += V::kLanes)
    store_int8<V>(V::load(z + n) / s, y + n, std::min<int64_t>(V::kLanes, N - n));
}

template <class V>
KDELTA_INLINE void quantise_fixed(const DequantSituArgs& a, const float* z, int64_t N, int8_t* y) {
  const ColumnParameter scale(a.quant_scale, 0), offset(a.quant_offset, 0);
  for (int64_t n = 0; n < N; n += V::kLanes) {
    const int64_t m = std::min<int64_t>(V::kLanes, N - n);
    V q = V::load(z + n) / scale.template load<V>(n, m);
    if (offset.data != nullptr) q = q + offset.template load<V>(n, m);
    // min and max keep a NaN that is their second operand; the comparison is false for it.
    q = V::max(V::set1(-128), V::min(V::set1(127), q));
    store_int8<V>(V::select_gt(V::set1(1000), q.abs(), q, V::zero()), y + n, m);
  }
}

template <class V, bool kCapUp, class In>
void dequant_situ_typed(const Exec& ex, const DequantSituArgs& a, int64_t N, float* scratch) {
  const int64_t grain = 16384 / std::max<int64_t>(N, 1) + 1;
  parallel_for_ranked(ex, dequant_situ_rows(a), grain, [&](int rank, int64_t begin, int64_t end) {
    float* z = scratch + rank * dequant_situ_row(N);
    for (int64_t t = begin; t < end; ++t) {
      const int64_t expert = dequant_situ_expert(a, t);
      const Dequantised<V, In> in{a.x.template at<const In>(t), ColumnParameter(a.weight_scale, expert),
                                  ColumnParameter(a.bias, expert),
                                  V::set1(a.activation_scale.null() ? 1.0f : *a.activation_scale.at(t))};
      const int32_t amax = dequant_situ_values<V, kCapUp>(a, in, N, z);
      if (a.dynamic)
        quantise_dynamic<V>(z, amax, N, a.y.at(t), a.scale.at(t));
      else
        quantise_fixed<V>(a, z, N, a.y.at(t));
    }
  });
}

template <class V, class In>
void dequant_situ_capped(const Exec& ex, const DequantSituArgs& a, int64_t N, float* scratch) {
  if (a.linear_beta > 0) return dequant_situ_typed<V, true, In>(ex, a, N, scratch);
  dequant_situ_typed<V, false, In>(ex, a, N, scratch);
}

template <class V>
void dequant_situ_cpu(const Exec& ex, const DequantSituArgs& a, const DequantSituDesc& d, void* scratch) {
  auto* z = static_cast<float*>(scratch);
  switch (a.x.dtype) {
    case DType::i8:
      return dequant_situ_capped<V, int8_t>(ex, a, d.width, z);
    case DType::i32:
      return dequant_situ_capped<V, int32_t>(ex, a, d.width, z);
    case DType::bf16:
      return dequant_situ_capped<V, bf16>(ex, a, d.width, z);
    default:
      KDELTA_UNREACHABLE("input dtype", a.x.dtype);
  }
}

}  // namespace kdelta
