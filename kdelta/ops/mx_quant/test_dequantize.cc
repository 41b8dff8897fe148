// Codes back to numbers: exact for every code and every scale.
#include <gtest/gtest.h>

#include <cmath>

#include "kdelta/ops/mx_quant/test_oracle.h"
#include "tests/support/spread.h"

namespace kdelta {
namespace {

using test::Guarded;
using test::kMxFormats;
using test::MxResult;
using test::TestExec;

class MxDequantize : public test::OpVariantTest {
 protected:
  MxDequantize() : OpVariantTest("mx_dequantize") {}
};
KDELTA_INSTANTIATE_VARIANTS(MxDequantize, mx_dequantize_variants());

MxDequantizeArgs args_of(MxResult& in, const AnyView& out) {
  return {.format = in.format, .codes = in.codes, .scale = in.scale, .out = out};
}

double code_value(DType format, uint8_t code) {
  return format == DType::f4_e2m1   ? e2m1_to_float(code)
         : format == DType::f8_e4m3 ? f8_e4m3_to_float(code)
                                    : f8_e5m2_to_float(code);
}

bool same_value(float got, double want) {
  if (std::isnan(want)) return std::isnan(got);
  return got == static_cast<float>(want) && std::signbit(got) == std::signbit(want);
}

// Row s has scale byte s; column c has code c (FP4: c % 16).
TEST_P(MxDequantize, EveryCodeUnderEveryScaleIsTheirProduct) {
  for (DType format : kMxFormats) {
    MxResult in(format, 256, 256);
    for (int64_t s = 0; s < 256; ++s) {
      for (int64_t b = 0; b < 8; ++b) in.scale[s * 8 + b] = static_cast<uint8_t>(s);
      for (int64_t i = 0; i < in.codes.shape()[1]; ++i)
        in.codes[s * in.codes.shape()[1] + i] =
            static_cast<uint8_t>(format == DType::f4_e2m1 ? (2 * i + 1) % 16 << 4 | 2 * i % 16 : i);
    }
    Guarded<float> out({256, 256});
    Guarded<bf16> half({256, 256});
    mx_dequantize(ex, args_of(in, out.view()));
    mx_dequantize(ex, args_of(in, half.view()));
    ASSERT_TRUE(out.guards_intact() && half.guards_intact());
    for (int64_t s = 0; s < 256; ++s)
      for (int64_t c = 0; c < 256; ++c) {
        const double scale = s == 255 ? NAN : std::ldexp(1.0, static_cast<int>(s) - 127);
        const double want = code_value(format, in.code(s, c)) * scale;
        ASSERT_TRUE(same_value(out[s * 256 + c], want)) << dtype_name(format) << " scale " << s << " column " << c;
        // Three bits of mantissa fit in bf16 wherever it is normal.
        if (std::fabs(want) >= 0x1p-126 || want == 0) {
          ASSERT_TRUE(same_value(to_float(half[s * 256 + c]), want)) << dtype_name(format) << " scale " << s;
        }
      }
  }
}

TEST_P(MxDequantize, EveryWidthAroundTheBlockReadsAndWritesItsOwnColumnsOnly) {
  for (DType format : kMxFormats)
    for (int64_t N : {1, 2, 3, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 8192, 8231}) {
      test::Rng rng(static_cast<uint64_t>(N));
      MxResult in(format, 3, N);
      for (int64_t i = 0; i < in.codes.size(); ++i) in.codes[i] = static_cast<uint8_t>(rng() & 0x3b);
      for (int64_t i = 0; i < in.scale.size(); ++i) in.scale[i] = static_cast<uint8_t>(120 + rng() % 16);
      const test::Spread<uint8_t> codes(in.codes, N + 40, 3), scale(in.scale, N + 40, 3);
      const test::Spread<float> out({3, N}, N + 5, 1);
      mx_dequantize(ex, {.format = format, .codes = codes.view(), .scale = scale.view(), .out = out.view()});
      EXPECT_TRUE(out.gaps_intact());
      const View<float> got = out.view();
      for (int64_t t = 0; t < 3; ++t)
        for (int64_t c = 0; c < N; ++c)
          ASSERT_EQ(*got.at(t, c), code_value(format, in.code(t, c)) *
                                       std::ldexp(1.0, in.scale[t * mx_scale_bytes(N) + c / kMxBlock] - 127));
    }
}

TEST_P(MxDequantize, WhatWasQuantisedFromTheFormatsOwnValuesComesBackExactly) {
  for (DType format : kMxFormats) {
    const auto& values = test::mx_values(format);
    Guarded<bf16> x({4, 96});
    test::Rng rng(3);
    for (int64_t i = 0; i < x.size(); ++i)
      x[i] = to_bf16(static_cast<float>(std::ldexp(values[rng() % values.size()], static_cast<int>(i / 32) - 5)) *
                     (rng() % 2 == 0 ? 1.0f : -1.0f));
    for (int64_t i = 0; i < x.size(); i += 32)
      x[i] = to_bf16(static_cast<float>(std::ldexp(values.back(), static_cast<int>(i / 32) - 5)));
    for (MxScaleRule rule : {MxScaleRule::floor, MxScaleRule::rceil}) {
      MxResult coded = test::quantised(ex, x, format, rule);
      Guarded<bf16> back({4, 96});
      mx_dequantize(ex, args_of(coded, back.view()));
      EXPECT_TRUE(same_bits(back, x)) << dtype_name(format);
    }
  }
}

TEST(MxDequantizeRefuses, WrongArgumentsByName) {
  TestExec ex;
  MxResult in(DType::f8_e4m3, 2, 33);
  for (int64_t i = 0; i < in.codes.size(); ++i) in.codes[i] = 0;
  for (int64_t i = 0; i < in.scale.size(); ++i) in.scale[i] = 0;
  Guarded<float> out({2, 33});
  auto with = [&](auto change) {
    MxDequantizeArgs a = args_of(in, out.view());
    change(a);
    return test::error_of([&] { mx_dequantize(ex, a); });
  };
  EXPECT_EQ(with([](MxDequantizeArgs&) {}), "no error");
  EXPECT_EQ(with([](MxDequantizeArgs& a) { a.out.shape = Shape{33}; }),
            "mx_dequantize: out: shape [33], expected [T, N]");
  EXPECT_EQ(with([](MxDequantizeArgs& a) { a.out.dtype = DType::f16; }),
            "mx_dequantize: out: dtype F16, accepted: F32, BF16");
  EXPECT_EQ(with([](MxDequantizeArgs& a) { a.format = DType::bf16; }),
            "mx_dequantize: format: dtype BF16, accepted: F8_E4M3, F8_E5M2, F4");
  EXPECT_EQ(with([](MxDequantizeArgs& a) {
              a.scale.shape = Shape{2, 3};
            }),
            "mx_dequantize: scale: shape [2, 3], expected [2, 2]");
}

TEST(MxDequantizePlanning, TouchesNothing) {
  TestExec ex;
  MxResult in(DType::f8_e4m3, 2, 64);
  Guarded<float> out({2, 64});
  mx_dequantize(ex.planning(), args_of(in, out.view()));
  EXPECT_TRUE(out.untouched());
}

}  // namespace
}  // namespace kdelta
