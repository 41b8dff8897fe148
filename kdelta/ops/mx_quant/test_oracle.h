// What the tests of mx_quant compare with: the values of every code in a table, the nearest found by search.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <vector>

#include "kdelta/core/matrix.h"
#include "kdelta/ops/mx_quant/variants.h"
#include "tests/support/op_test.h"

namespace kdelta::test {

inline constexpr DType kMxFormats[] = {DType::f8_e4m3, DType::f8_e5m2, DType::f4_e2m1};
inline constexpr MxScaleRule kMxRules[] = {MxScaleRule::floor, MxScaleRule::rceil, MxScaleRule::even};

// The finite values of codes 0, 1, 2, ... without sign, which ascend.
inline const std::vector<double>& mx_values(DType format) {
  static const auto table = [](DType f) {
    std::vector<double> values;
    for (int code = 0; code < (f == DType::f4_e2m1 ? 8 : 128); ++code) {
      const auto c = static_cast<uint8_t>(code);
      const float v = f == DType::f4_e2m1   ? e2m1_to_float(c)
                      : f == DType::f8_e4m3 ? f8_e4m3_to_float(c)
                                            : f8_e5m2_to_float(c);
      if (std::isfinite(v)) values.push_back(v);
    }
    return values;
  };
  static const std::vector<double> e4m3 = table(DType::f8_e4m3), e5m2 = table(DType::f8_e5m2),
                                   e2m1 = table(DType::f4_e2m1);
  return format == DType::f4_e2m1 ? e2m1 : format == DType::f8_e4m3 ? e4m3 : e5m2;
}

// Nearest value's code; of two equally near ones the even code; above the largest the largest.
inline int nearest_code(const std::vector<double>& values, double x) {
  const auto above = std::ranges::lower_bound(values, x);
  if (above == values.end()) return static_cast<int>(values.size()) - 1;
  const int code = static_cast<int>(above - values.begin());
  if (code == 0 || *above == x) return code;
  const double up = *above - x, down = x - values[static_cast<size_t>(code) - 1];
  if (up == down) return code % 2 == 0 ? code : code - 1;
  return up < down ? code : code - 1;
}

struct OracleBlock {
  uint8_t scale = 0;
  std::array<uint8_t, kMxBlock> codes{};
};

inline OracleBlock oracle_block(std::span<const float> x, DType format, MxScaleRule rule) {
  const std::vector<double>& values = mx_values(format);
  OracleBlock out;
  double amax = 0;
  for (float v : x) {
    if (!std::isfinite(v)) {
      out.scale = 255;
      return out;
    }
    amax = std::max(amax, std::fabs(static_cast<double>(v)));
  }
  // The least scale that satisfies the rule, found by trying; `top` is the power of two of the largest value.
  const double largest = values.back(), top = std::exp2(std::floor(std::log2(largest)));
  const double ulp = largest - values[values.size() - 2];
  auto serves = [&](double scaled) {
    switch (rule) {
      case MxScaleRule::floor:
        return scaled < 2 * top;
      case MxScaleRule::rceil:
        return scaled <= largest;
      case MxScaleRule::even:
        return scaled < 2 * top - ulp / 2;
    }
    return false;
  };
  int s = amax > 0 ? std::max(0, std::ilogb(amax) + 100) : 0;  // surely too small: every format's top is below 2^16
  while (!serves(std::ldexp(amax, 127 - s))) ++s;
  out.scale = static_cast<uint8_t>(s);
  for (size_t i = 0; i < x.size(); ++i) {
    const double v = std::ldexp(static_cast<double>(x[i]), 127 - s);
    out.codes[i] = static_cast<uint8_t>(nearest_code(values, std::fabs(v)) |
                                        (std::signbit(v) ? (format == DType::f4_e2m1 ? 8 : 128) : 0));
  }
  return out;
}

// Guarded room for the codes and scales of [T, N].
struct MxResult {
  MxResult(DType f, int64_t T, int64_t N) : format(f), codes({T, mx_code_bytes(f, N)}), scale({T, mx_scale_bytes(N)}) {}
  MxQuantizeArgs args(const AnyConstView& x, MxScaleRule rule = MxScaleRule::floor) {
    return {.format = format, .rule = rule, .x = x, .codes = codes.view(), .scale = scale.view()};
  }
  template <class T>
  MxQuantizeArgs args(Guarded<T>& x, MxScaleRule rule = MxScaleRule::floor) {
    return args(AnyConstView(x.view()), rule);
  }
  uint8_t code(int64_t t, int64_t c) const {
    if (format != DType::f4_e2m1) return codes[t * codes.shape()[1] + c];
    return static_cast<uint8_t>((codes[t * codes.shape()[1] + c / 2] >> (c % 2 * 4)) & 15);
  }
  DType format;
  Guarded<uint8_t> codes, scale;
};

template <class T>
MxResult quantised(TestExec& ex, Guarded<T>& x, DType format, MxScaleRule rule) {
  MxResult out(format, x.shape()[0], x.shape()[1]);
  mx_quantize(ex, out.args(x, rule));
  return out;
}

}  // namespace kdelta::test
