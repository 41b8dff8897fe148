// The definition of dequant_situ: the activation in fp64, before and behind it the fp32 operations of the contract.
#include <algorithm>
#include <cmath>

#include "kdelta/core/check.h"
#include "kdelta/ops/dequant_situ/variants.h"

namespace kdelta {
namespace {

float stored(const DequantSituArgs& a, int64_t t, int64_t c) {
  switch (a.x.dtype) {
    case DType::i8:
      return a.x.at<const int8_t>(t)[c];
    case DType::i32:
      return static_cast<float>(a.x.at<const int32_t>(t)[c]);
    case DType::bf16:
      return to_float(a.x.at<const bf16>(t)[c]);
    default:
      KDELTA_UNREACHABLE("input dtype", a.x.dtype);
  }
}

// Element c of [1], [C] or [E, C].
float parameter(const View<const float>& v, int64_t expert, int64_t c) {
  if (v.shape.rank == 2) return *v.at(expert, c);
  return *v.at(v.dim(0) == 1 ? 0 : c);
}

float value(const DequantSituArgs& a, int64_t t, int64_t expert, int64_t c) {
  float v = stored(a, t, c);
  if (!a.weight_scale.null()) v *= parameter(a.weight_scale, expert, c);
  if (!a.activation_scale.null()) v *= *a.activation_scale.at(t);
  if (!a.bias.null()) v += parameter(a.bias, expert, c);
  return v;
}

double situ(const DequantSituArgs& a, double gate, double up) {
  const double linear = a.linear_beta > 0 ? a.linear_beta * std::tanh(up / a.linear_beta) : up;
  return a.beta * std::tanh(gate / a.beta) * (1 / (1 + std::exp(-gate))) * linear;
}

void quantise_row(const DequantSituArgs& a, int64_t t, const float* z, int64_t N) {
  float amax = 0;
  for (int64_t n = 0; n < N; ++n) amax = std::isnan(z[n]) || std::isnan(amax) ? NAN : std::max(amax, std::fabs(z[n]));
  float scale = amax / 127;
  if (scale == 0) scale = 1;
  *a.scale.at(t) = scale;
  for (int64_t n = 0; n < N; ++n)
    a.y.at(t)[n] = std::isfinite(scale) ? static_cast<int8_t>(std::nearbyint(z[n] / scale)) : int8_t{0};
}

void quantise_row_fixed(const DequantSituArgs& a, int64_t t, const float* z, int64_t N) {
  for (int64_t n = 0; n < N; ++n) {
    float q = z[n] / parameter(a.quant_scale, 0, n);
    if (!a.quant_offset.null()) q += parameter(a.quant_offset, 0, n);
    a.y.at(t)[n] = std::isnan(q) ? int8_t{0} : static_cast<int8_t>(std::nearbyint(std::clamp(q, -128.0f, 127.0f)));
  }
}

}  // namespace

void dequant_situ_reference(const Exec&, const DequantSituArgs& a, const DequantSituDesc& d, void* scratch) {
  const int64_t N = d.width;
  auto* z = static_cast<float*>(scratch);
  for (int64_t t = 0; t < dequant_situ_rows(a); ++t) {
    const int64_t e = dequant_situ_expert(a, t);
    for (int64_t n = 0; n < N; ++n) {
      const double left = value(a, t, e, n), right = value(a, t, e, N + n);
      z[n] = static_cast<float>(a.activate_left ? situ(a, left, right) : situ(a, right, left));
    }
    if (a.dynamic)
      quantise_row(a, t, z, N);
    else
      quantise_row_fixed(a, t, z, N);
  }
}

}  // namespace kdelta
