// The definition of the gated norm, in fp64.
#include <cmath>

#include "kdelta/ops/common/dispatch.h"
#include "kdelta/ops/gated_norm/variants.h"

namespace kdelta {
namespace {

double load(const AnyConstView& v, int64_t t, int64_t h, int64_t d) {
  return v.dtype == DType::f32 ? v.at<const float>(t, h)[d] : to_float(v.at<const bf16>(t, h)[d]);
}

void store(const AnyView& v, int64_t t, int64_t h, int64_t d, double value) {
  const float x = static_cast<float>(value);
  if (v.dtype == DType::f32)
    v.at<float>(t, h)[d] = x;
  else
    v.at<bf16>(t, h)[d] = to_bf16(x);
}

double activate(GateActivation activation, double gate) {
  const double sigmoid = 1 / (1 + std::exp(-gate));
  switch (activation) {
    case GateActivation::sigmoid:
      return sigmoid;
    case GateActivation::silu:
      return gate * sigmoid;
  }
  KDELTA_UNREACHABLE("gate activation", activation);
}

void row(const GatedNormArgs& a, int64_t t, int64_t h) {
  const int64_t D = a.x.dim(2);
  auto s = [&](int64_t d) { return load(a.x, t, h, d) + (a.residual.null() ? 0.0 : load(a.residual, t, h, d)); };
  double sum = 0;
  for (int64_t d = 0; d < D; ++d) sum += s(d) * s(d);
  const double scale = 1 / std::sqrt(sum / static_cast<double>(D) + static_cast<double>(a.eps));
  for (int64_t d = 0; d < D; ++d) {
    const double value = s(d);
    double y = value * scale * (a.weight.null() ? 1.0 : a.weight.data[d]) + (a.bias.null() ? 0.0 : a.bias.data[d]);
    y *= activate(a.activation, load(a.gate, t, h, d));
    if (!a.sum_out.null()) store(a.sum_out, t, h, d, value);
    store(a.out, t, h, d, y);
  }
}

void zero_row(const GatedNormArgs& a, int64_t t, int64_t h) {
  for (int64_t d = 0; d < a.x.dim(2); ++d) {
    if (!a.sum_out.null()) store(a.sum_out, t, h, d, 0);
    store(a.out, t, h, d, 0);
  }
}

}  // namespace

void gated_norm_reference(const Exec&, const GatedNormArgs& a, const GatedNormDesc&, void*) {
  const int64_t live = a.live.null() ? a.x.dim(0) : a.live.data[0];
  for (int64_t t = 0; t < a.x.dim(0); ++t)
    for (int64_t h = 0; h < a.x.dim(1); ++h) t < live ? row(a, t, h) : zero_row(a, t, h);
}

}  // namespace kdelta
