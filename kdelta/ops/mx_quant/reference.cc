// The definition of mx_quantize and mx_dequantize, in fp64.
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "kdelta/core/matrix.h"
#include "kdelta/ops/common/dispatch.h"
#include "kdelta/ops/mx_quant/variants.h"

namespace kdelta {
namespace {

// A binary format with `mantissa` stored bits whose normal numbers begin at 2^least; largest = M * 2^emax.
struct Format {
  int mantissa, least, emax;
  double largest;
};

Format format_of(DType dtype) {
  switch (dtype) {
    case DType::f8_e4m3:
      return {3, -6, 8, 448};
    case DType::f8_e5m2:
      return {2, -14, 15, 57344};
    case DType::f4_e2m1:
      return {1, 0, 2, 6};
    default:
      KDELTA_UNREACHABLE("MX format", dtype);
  }
}

// amax is finite and above 0.
int scale_exponent(const Format& f, MxScaleRule rule, double amax) {
  const int e = std::ilogb(amax);
  const double m = std::ldexp(amax, -e), M = std::ldexp(f.largest, -f.emax);
  switch (rule) {
    case MxScaleRule::floor:
      return e - f.emax;
    case MxScaleRule::rceil:
      return e - f.emax + (m > M ? 1 : 0);
    case MxScaleRule::even:
      return e - f.emax + (m >= 2 - std::ldexp(0.5, -f.mantissa) ? 1 : 0);
  }
  KDELTA_UNREACHABLE("scale rule", rule);
}

// Code without sign of a magnitude: the integer that counts the format's values from 0 upwards.
int magnitude_code(const Format& f, double x) {
  const double v = std::min(x, f.largest);
  const int e = v > 0 ? std::max(std::ilogb(v), f.least) : f.least;
  // nearbyint rounds ties to even; rounding up to the next power of two carries into the exponent by itself.
  const int steps = static_cast<int>(std::nearbyint(std::ldexp(v, f.mantissa - e)));
  return steps + ((e - f.least) << f.mantissa);
}

struct Block {
  std::array<double, kMxBlock> x{};
  int64_t n = 0;
};

uint8_t quantise(const Block& b, DType dtype, MxScaleRule rule, std::array<uint8_t, kMxBlock>& codes) {
  const Format f = format_of(dtype);
  double amax = 0;
  bool finite = true;
  for (int64_t i = 0; i < b.n; ++i) {
    const double a = std::fabs(b.x[static_cast<size_t>(i)]);
    finite = finite && std::isfinite(a);
    amax = std::max(amax, a);
  }
  codes.fill(0);
  if (!finite) return 255;
  const int E = amax > 0 ? std::max(-127, scale_exponent(f, rule, amax)) : -127;
  const int sign = dtype == DType::f4_e2m1 ? 8 : 128;
  for (size_t i = 0; i < static_cast<size_t>(b.n); ++i)
    codes[i] =
        static_cast<uint8_t>(magnitude_code(f, std::ldexp(std::fabs(b.x[i]), -E)) | (std::signbit(b.x[i]) ? sign : 0));
  return static_cast<uint8_t>(E + 127);
}

double situ(const MxQuantizeArgs& a, double gate, double up) {
  const double linear = a.linear_beta > 0 ? a.linear_beta * std::tanh(up / a.linear_beta) : up;
  return a.beta * std::tanh(gate / a.beta) * (1 / (1 + std::exp(-gate))) * linear;
}

template <class In>
double element(const MxQuantizeArgs& a, int64_t t, int64_t c) {
  const In* x = a.x.at<const In>(t);
  if (!a.situ) return to_float(x[c]);
  const int64_t N = mx_width(a);
  const double left = to_float(x[c]), right = to_float(x[N + c]);
  return to_float(to_bf16(static_cast<float>(a.activate_left ? situ(a, left, right) : situ(a, right, left))));
}

void store_codes(const MxQuantizeArgs& a, int64_t t, int64_t begin, int64_t n,
                 const std::array<uint8_t, kMxBlock>& codes) {
  if (a.format != DType::f4_e2m1) {
    std::copy_n(codes.begin(), n, a.codes.at(t, begin));
    return;
  }
  for (int64_t i = 0; i < n; i += 2)  // codes behind n are 0
    *a.codes.at(t, (begin + i) / 2) =
        static_cast<uint8_t>(codes[static_cast<size_t>(i)] | codes[static_cast<size_t>(i) + 1] << 4);
}

}  // namespace

void mx_quantize_reference(const Exec&, const MxQuantizeArgs& a, const MxDesc&, void*) {
  const int64_t N = mx_width(a), blocks = mx_scale_bytes(N);
  std::array<uint8_t, kMxBlock> codes;
  for (int64_t t = 0; t < mx_rows(a); ++t) {
    for (int64_t b = 0; b < a.scale.dim(1); ++b) {
      Block block;
      block.n = b < blocks ? std::min<int64_t>(kMxBlock, N - b * kMxBlock) : 0;
      dispatch_activation(a.x.dtype, [&](auto in) {
        for (int64_t i = 0; i < block.n; ++i)
          block.x[static_cast<size_t>(i)] = element<decltype(in)>(a, t, b * kMxBlock + i);
      });
      *a.scale.at(t, b) = quantise(block, a.format, a.rule, codes);
      store_codes(a, t, b * kMxBlock, block.n, codes);
    }
  }
}

void mx_dequantize_reference(const Exec&, const MxDequantizeArgs& a, const MxDesc&, void*) {
  Matrix row{.dtype = a.format, .rows = 1, .cols = a.out.dim(1)};
  std::vector<float> values(static_cast<size_t>(row.cols));
  for (int64_t t = 0; t < a.out.dim(0); ++t) {
    row.data = a.codes.at(t);
    row.scale = a.scale.at(t);
    dequantize_row(row, 0, values.data());
    dispatch_activation(a.out.dtype, [&](auto out) {
      for (int64_t c = 0; c < row.cols; ++c)
        a.out.at<decltype(out)>(t)[c] = from_float<decltype(out)>(values[static_cast<size_t>(c)]);
    });
  }
}

}  // namespace kdelta
