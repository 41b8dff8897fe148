// Merge table, Dequant-SiTU: the three input types, every refusal, and what counts leave alone.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "kdelta/ops/activation/activation.h"
#include "kdelta/ops/dequant_situ/variants.h"
#include "tests/support/op_test.h"
#include "tests/support/spread.h"

namespace kdelta {
namespace {

using test::Guarded;
using test::TestExec;

class DequantSitu : public test::OpVariantTest {
 protected:
  DequantSitu() : OpVariantTest("dequant_situ") { ex.force("activation", GetParam()); }
};
KDELTA_INSTANTIATE_VARIANTS(DequantSitu, dequant_situ_variants());

struct Form {
  float beta = 4, linear_beta = 25;
  bool activate_left = true;
};
constexpr Form kForms[] = {{}, {.activate_left = false}, {.beta = 1, .linear_beta = 0}};

// Rows of accumulators with their scales; weight_scale and bias have `experts` rows of 2N, or one element when 0.
template <class In>
struct Scene {
  Scene(int64_t T, int64_t N, int64_t experts)
      : x({T, 2 * N}),
        weight_scale({experts == 0 ? 1 : experts * 2 * N}),
        bias(weight_scale.shape()),
        activation_scale({T}),
        y({T, N}),
        scale({T}) {
    test::Rng rng(static_cast<uint64_t>(T * 1000 + N));
    const int range = sizeof(In) == 1 ? 127 : 100000;
    for (int64_t i = 0; i < x.size(); ++i) {
      if constexpr (std::is_same_v<In, bf16>)
        x[i] = to_bf16(static_cast<float>(static_cast<int64_t>(rng() % 2001) - 1000) / 100);
      else
        x[i] = static_cast<In>(static_cast<int64_t>(rng() % static_cast<uint64_t>(2 * range + 1)) - range);
    }
    const float unit = sizeof(In) == 1 ? 0.05f : 0.004f;
    fill_uniform(weight_scale, rng, unit / 2, unit);
    fill_uniform(bias, rng, -1.0f, 1.0f);
    fill_uniform(activation_scale, rng, 0.005f, 0.02f);
  }
  DequantSituArgs args(const Form& f = {}) {
    DequantSituArgs a{.beta = f.beta, .linear_beta = f.linear_beta, .activate_left = f.activate_left};
    a.x = x.view();
    a.y = y.view();
    a.scale = scale.view();
    if constexpr (!std::is_same_v<In, bf16>) {
      a.weight_scale = weight_scale;
      a.bias = bias;
    }
    if constexpr (std::is_same_v<In, int32_t>) a.activation_scale = activation_scale;
    return a;
  }
  // The activation op on dequantised values, fp32.
  std::vector<float> activated(TestExec& ex, const Form& f, int64_t expert = 0) {
    const int64_t T = x.shape()[0], N = y.shape()[1];
    Guarded<float> v({T, 2 * N}), z({T, N});
    for (int64_t t = 0; t < T; ++t)
      for (int64_t c = 0; c < 2 * N; ++c) {
        const int64_t p = weight_scale.size() == 1 ? 0 : expert * 2 * N + c;
        if constexpr (std::is_same_v<In, bf16>)
          v[t * 2 * N + c] = to_float(x[t * 2 * N + c]);
        else
          v[t * 2 * N + c] =
              static_cast<float>(x[t * 2 * N + c]) * weight_scale[p] * (sizeof(In) == 4 ? activation_scale[t] : 1.0f) +
              bias[p];
      }
    const AnyConstView both = v.view();
    activation(ex, {.kind = ActivationKind::situ,
                    .beta = f.beta,
                    .linear_beta = f.linear_beta,
                    .gate = both.columns(f.activate_left ? 0 : N, N),
                    .up = both.columns(f.activate_left ? N : 0, N),
                    .out = z.view()});
    return {z.data(), z.data() + z.size()};
  }
  Guarded<In> x;
  Guarded<float> weight_scale, bias, activation_scale;
  Guarded<int8_t> y;
  Guarded<float> scale;
};

// Row t of y and its scale are those of z.
template <class In>
void expect_dynamic_row(const Scene<In>& s, const std::vector<float>& z, int64_t t) {
  const int64_t N = s.y.shape()[1];
  float amax = 0;
  for (int64_t n = 0; n < N; ++n) amax = std::max(amax, std::fabs(z[static_cast<size_t>(t * N + n)]));
  const float scale = amax / 127 > 0 ? amax / 127 : 1;
  ASSERT_EQ(s.scale[t], scale) << "row " << t;
  for (int64_t n = 0; n < N; ++n)
    ASSERT_EQ(s.y[t * N + n], static_cast<int>(std::nearbyint(z[static_cast<size_t>(t * N + n)] / scale)))
        << "row " << t << " column " << n;
}

template <class In>
void expect_dynamic(TestExec& ex, int64_t T, int64_t N, bool per_column, const Form& form) {
  Scene<In> s(T, N, per_column ? 1 : 0);
  dequant_situ(ex, s.args(form));
  ASSERT_TRUE(s.y.guards_intact() && s.scale.guards_intact());
  const std::vector<float> z = s.activated(ex, form);
  for (int64_t t = 0; t < T; ++t) expect_dynamic_row(s, z, t);
}

TEST_P(DequantSitu, EveryInputTypeIsDequantisedActivatedAndQuantisedByItsRowsLargest) {
  for (int64_t N : {1, 2, 3, 7, 8, 15, 16, 17, 33, 100, 1025})
    for (const Form& form : kForms) {
      expect_dynamic<int8_t>(ex, 5, N, true, form);
      expect_dynamic<int8_t>(ex, 5, N, false, form);
      expect_dynamic<int32_t>(ex, 5, N, true, form);
      expect_dynamic<bf16>(ex, 5, N, true, form);
    }
}

TEST_P(DequantSitu, EachExpertsRowsTakeItsScalesAndBias) {
  constexpr int64_t T = 9, N = 19, E = 4;
  const int64_t counts[E] = {2, 0, 5, 1};  // 8 of 9 rows
  Scene<int32_t> s(T, N, E);
  DequantSituArgs a = s.args();
  a.weight_scale = View<const float>(s.weight_scale.data(), {E, 2 * N});
  a.bias = View<const float>(s.bias.data(), {E, 2 * N});
  a.group_counts = View<const int64_t>(counts, {E});
  a.activation_scale = View<const float>(s.activation_scale.data(), {T, 1});
  dequant_situ(ex, a);
  int64_t t = 0;
  for (int64_t e = 0; e < E; ++e) {
    const std::vector<float> z = s.activated(ex, {}, e);
    for (int64_t i = 0; i < counts[e]; ++i) expect_dynamic_row(s, z, t++);
  }
  EXPECT_TRUE(s.y.is_poison(8 * N, N) && s.scale.is_poison(8, 1)) << "the row behind the counts was written";
}

TEST_P(DequantSitu, SharedScalesWithCountsAndBf16WithCountsLeaveTheRowsBehindThem) {
  const int64_t counts[] = {1, 2};
  Scene<int32_t> shared(5, 20, 1);
  Scene<bf16> plain(5, 20, 1);
  DequantSituArgs a = shared.args(), b = plain.args();
  a.weight_scale.shape = a.bias.shape = Shape{40};
  a.group_counts = b.group_counts = View<const int64_t>(counts, {2});
  dequant_situ(ex, a);
  dequant_situ(ex, b);
  const std::vector<float> z = shared.activated(ex, {}), zb = plain.activated(ex, {});
  for (int64_t t = 0; t < 3; ++t) {
    expect_dynamic_row(shared, z, t);
    expect_dynamic_row(plain, zb, t);
  }
  EXPECT_TRUE(shared.y.is_poison(60, 40) && plain.y.is_poison(60, 40));
}

TEST_P(DequantSitu, FixedScalesAndOffsetsSaturate) {
  for (const bool per_column : {true, false})
    for (const bool with_offset : {true, false}) {
      constexpr int64_t T = 4, N = 37;
      Scene<int8_t> s(T, N, 1);
      test::Rng rng(9);
      Guarded<float> quant_scale({per_column ? N : 1}), offset({per_column ? N : 1});
      fill_uniform(quant_scale, rng, 0.02f, 0.2f);
      fill_uniform(offset, rng, -3.0f, 3.0f);
      DequantSituArgs a = s.args();
      a.dynamic = false;
      a.scale = {};
      a.quant_scale = quant_scale;
      if (with_offset) a.quant_offset = offset;
      dequant_situ(ex, a);
      const std::vector<float> z = s.activated(ex, {});
      int saturated = 0;
      for (int64_t i = 0; i < T * N; ++i) {
        const int64_t p = per_column ? i % N : 0;
        const float q = z[static_cast<size_t>(i)] / quant_scale[p] + (with_offset ? offset[p] : 0.0f);
        ASSERT_EQ(s.y[i], static_cast<int>(std::nearbyint(std::clamp(q, -128.0f, 127.0f))));
        saturated += std::fabs(q) > 128 ? 1 : 0;
      }
      EXPECT_GT(saturated, 0);
      EXPECT_TRUE(s.scale.untouched());
    }
}

TEST_P(DequantSitu, AgreesWithTheFormulaInFp64) {
  constexpr int64_t T = 3, N = 300;
  Scene<int32_t> s(T, N, 1);
  dequant_situ(ex, s.args());
  for (int64_t t = 0; t < T; ++t)
    for (int64_t n = 0; n < N; ++n) {
      auto v = [&](int64_t c) {
        return static_cast<double>(s.x[t * 2 * N + c]) * s.weight_scale[c] * s.activation_scale[t] + s.bias[c];
      };
      const double z = 4 * std::tanh(v(n) / 4) / (1 + std::exp(-v(n))) * 25 * std::tanh(v(N + n) / 25);
      ASSERT_NEAR(s.y[t * N + n] * static_cast<double>(s.scale[t]), z, 0.5005 * s.scale[t]);
    }
}

TEST_P(DequantSitu, ARowOfZerosHasScaleOneAndATinyRowToo) {
  Scene<bf16> s(2, 24, 1);
  for (int64_t c = 0; c < 48; ++c) s.x[c] = bf16{0}, s.x[48 + c] = to_bf16(1e-22f);
  dequant_situ(ex, s.args());
  for (int64_t t = 0; t < 2; ++t) {
    EXPECT_EQ(s.scale[t], 1.0f);
    for (int64_t n = 0; n < 24; ++n) EXPECT_EQ(s.y[t * 24 + n], 0);
  }
}

TEST_P(DequantSitu, NanAndInfinityAreTheScaleOfTheirRowAndHarmNoOther) {
  Scene<bf16> s(3, 24, 1), clean(3, 24, 1);
  s.x[5] = to_bf16(NAN);
  s.x[2 * 48 + 24 + 23] = to_bf16(INFINITY);  // up, without a cap
  const Form uncapped{.linear_beta = 0};
  dequant_situ(ex, s.args(uncapped));
  dequant_situ(ex, clean.args(uncapped));
  EXPECT_TRUE(std::isnan(s.scale[0]));
  EXPECT_TRUE(std::isinf(s.scale[2]) || std::isnan(s.scale[2]));
  for (int64_t n = 0; n < 24; ++n) {
    EXPECT_EQ(s.y[n], 0);
    EXPECT_EQ(s.y[48 + n], 0);
    EXPECT_EQ(s.y[24 + n], clean.y[24 + n]);
  }
  EXPECT_EQ(s.scale[1], clean.scale[1]);
}

TEST_P(DequantSitu, NanOfAFixedScaleIsZero) {
  Scene<int8_t> s(1, 20, 1);
  DequantSituArgs a = s.args();
  const float quant_scale = std::bit_cast<float>(0x7fc00055u);  // a NaN whose low byte is no zero
  a.dynamic = false;
  a.scale = {};
  a.quant_scale = View<const float>(&quant_scale, {1});
  dequant_situ(ex, a);
  for (int64_t n = 0; n < 20; ++n) EXPECT_EQ(s.y[n], 0);
}

TEST_P(DequantSitu, BytesOfARowDependNeitherOnItsCompanyNorOnTheThreadsNorOnStrides) {
  constexpr int64_t T = 1500, N = 515;
  Scene<int32_t> s(T, N, 1);
  dequant_situ(ex, s.args());
  for (int threads : {1, 3}) {
    TestExec other(threads);
    force(other);
    Scene<int32_t> again(T, N, 1);
    dequant_situ(other, again.args());
    EXPECT_TRUE(same_bits(again.y, s.y) && same_bits(again.scale, s.scale));
  }
  const test::Spread<int32_t> x(s.x, 2 * N + 7, 3);
  const test::Spread<int8_t> y({T, N}, N + 9, 4);
  DequantSituArgs a = s.args();
  a.x = x.view();
  a.y = y.view();
  dequant_situ(ex, a);
  EXPECT_TRUE(y.rows_equal(s.y) && y.gaps_intact());
}

TEST_P(DequantSitu, NoRowsAndNoColumnsAreLegal) {
  Scene<bf16> none(0, 8, 1);
  dequant_situ(ex, none.args());
  Guarded<bf16> thin({2, 0});
  Guarded<int8_t> y({2, 0});
  Guarded<float> scale({2});
  dequant_situ(ex, {.x = thin.view(), .y = y.view(), .scale = scale.view()});
  EXPECT_EQ(scale[0], 1.0f);
}

// What the table of the header refuses, by name; one case for each cell.
template <class In, class F>
std::string refusal(F change) {
  TestExec ex;
  Scene<In> s(2, 4, 1);
  DequantSituArgs a = s.args();
  change(a);
  return test::error_of([&] { dequant_situ(ex, a); });
}

const float kFloats[64] = {};
const int64_t kCounts[2] = {1, 1};
View<const float> floats(const Shape& shape) {
  return {kFloats, shape};
}

TEST(DequantSituRefuses, WhatI8DoesNotTakeAndWhatItMisses) {
  using A = DequantSituArgs;
  EXPECT_EQ(refusal<int8_t>([](A&) {}), "no error");
  EXPECT_EQ(refusal<int8_t>([](A& a) { a.weight_scale = {}; }),
            "dequant_situ: weight_scale: missing, expected [8] or [1] with x of I8");
  EXPECT_EQ(refusal<int8_t>([](A& a) { a.weight_scale = floats({4}); }),
            "dequant_situ: weight_scale: shape [4], expected [8] or [1]");
  EXPECT_EQ(refusal<int8_t>([](A& a) { a.bias = floats({1}); }), "dequant_situ: bias: shape [1], expected [8]");
  EXPECT_EQ(refusal<int8_t>([](A& a) { a.activation_scale = floats({2}); }),
            "dequant_situ: activation_scale: shape [2], expected none with x of I8");
  EXPECT_EQ(refusal<int8_t>([](A& a) {
              a.group_counts = {kCounts, {2}};
            }),
            "dequant_situ: group_counts: shape [2], expected none with x of I8");
  EXPECT_EQ(refusal<int8_t>([](A& a) { a.quant_scale = floats({4}); }),
            "dequant_situ: quant_scale: shape [4], expected none with dynamic quantisation");
  EXPECT_EQ(refusal<int8_t>([](A& a) { a.dynamic = false; }),
            "dequant_situ: quant_scale: missing, expected [4] or [1] with fixed quantisation");
  EXPECT_EQ(refusal<int8_t>([](A& a) { a.dynamic = false, a.quant_scale = floats({1}); }),
            "dequant_situ: scale: shape [2], expected none with fixed quantisation");
  EXPECT_EQ(refusal<int8_t>([](A& a) { a.dynamic = false, a.quant_scale = floats({1}), a.quant_offset = floats({2}); }),
            "dequant_situ: quant_offset: shape [2], expected [4] or [1]");
}

TEST(DequantSituRefuses, WhatI32DoesNotTakeAndWhatItMisses) {
  using A = DequantSituArgs;
  EXPECT_EQ(refusal<int32_t>([](A&) {}), "no error");
  EXPECT_EQ(refusal<int32_t>([](A& a) { a.weight_scale = {}; }),
            "dequant_situ: weight_scale: missing, expected [8] with x of I32");
  EXPECT_EQ(refusal<int32_t>([](A& a) { a.weight_scale = floats({1}); }),
            "dequant_situ: weight_scale: shape [1], expected [8]");
  EXPECT_EQ(refusal<int32_t>([](A& a) {
              a.weight_scale = floats({2, 8});
            }),
            "dequant_situ: group_counts: missing, expected [E] with weight_scale of shape [2, 8]");
  EXPECT_EQ(refusal<int32_t>([](A& a) {
              a.group_counts = {kCounts, {2}}, a.weight_scale = floats({3, 8});
            }),
            "dequant_situ: weight_scale: shape [3, 8], expected [8] or [2, 8]");
  EXPECT_EQ(refusal<int32_t>([](A& a) { a.activation_scale = {}; }),
            "dequant_situ: activation_scale: missing, expected [2] or [2, 1] with x of I32");
  EXPECT_EQ(refusal<int32_t>([](A& a) {
              a.activation_scale = floats({1, 2});
            }),
            "dequant_situ: activation_scale: shape [1, 2], expected [2] or [2, 1]");
  EXPECT_EQ(refusal<int32_t>([](A& a) { a.dynamic = false, a.quant_scale = floats({1}); }),
            "dequant_situ: dynamic: false, expected true with x of I32");
  EXPECT_EQ(refusal<int32_t>([](A& a) { a.quant_offset = floats({1}); }),
            "dequant_situ: quant_offset: shape [1], expected none with dynamic quantisation");
}

TEST(DequantSituRefuses, WhatBf16DoesNotTake) {
  using A = DequantSituArgs;
  EXPECT_EQ(refusal<bf16>([](A&) {}), "no error");
  EXPECT_EQ(refusal<bf16>([](A& a) { a.weight_scale = floats({8}); }),
            "dequant_situ: weight_scale: shape [8], expected none with x of BF16");
  EXPECT_EQ(refusal<bf16>([](A& a) { a.activation_scale = floats({2}); }),
            "dequant_situ: activation_scale: shape [2], expected none with x of BF16");
  EXPECT_EQ(refusal<bf16>([](A& a) { a.bias = floats({8}); }),
            "dequant_situ: bias: shape [8], expected none with x of BF16");
  EXPECT_EQ(refusal<bf16>([](A& a) { a.dynamic = false; }),
            "dequant_situ: dynamic: false, expected true with x of BF16");
}

TEST(DequantSituRefuses, WrongShapesAndNumbersByName) {
  using A = DequantSituArgs;
  EXPECT_EQ(refusal<bf16>([](A& a) { a.x.shape = Shape{16}; }), "dequant_situ: x: shape [16], expected [T, 2N]");
  EXPECT_EQ(refusal<bf16>([](A& a) {
              a.x.shape = Shape{2, 7};
            }),
            "dequant_situ: x: 7 columns, expected an even number: gate and up");
  EXPECT_EQ(refusal<bf16>([](A& a) { a.x.dtype = DType::f32; }), "dequant_situ: x: dtype F32, accepted: I8, I32, BF16");
  EXPECT_EQ(refusal<bf16>([](A& a) { a.beta = 0; }), "dequant_situ: beta: 0, expected > 0");
  EXPECT_THAT(refusal<bf16>([](A& a) { a.linear_beta = NAN; }), testing::HasSubstr("dequant_situ: linear_beta"));
  EXPECT_EQ(refusal<bf16>([](A& a) { a.y.shape = Shape{2, 8}; }), "dequant_situ: y: shape [2, 8], expected [2, 4]");
  EXPECT_EQ(refusal<bf16>([](A& a) { a.scale.shape = Shape{3}; }), "dequant_situ: scale: shape [3], expected [2]");
  const int64_t many[] = {1, 2};
  EXPECT_EQ(refusal<bf16>([&](A& a) {
              a.group_counts = {many, {2}};
            }),
            "dequant_situ: group_counts: count 2 of expert 1 behind 1 rows, expected a sum of at most 2");
  EXPECT_EQ(refusal<bf16>([](A& a) {
              a.group_counts = {kCounts, {1, 2}};
            }),
            "dequant_situ: group_counts: shape [1, 2], expected [E]");
}

TEST(DequantSituChoice, TakesTheBestRowOfTheProcessor) {
  Options options;
  DequantSituDesc d{.target = {.isa = IsaLevel::amx}, .rows = 1, .width = 8};
  EXPECT_STREQ(choose("dequant_situ", dequant_situ_variants(), d, options).name, "avx512");
  d.target.isa = IsaLevel::avx2;
  EXPECT_STREQ(choose("dequant_situ", dequant_situ_variants(), d, options).name, "avx2");
  d.target.isa = IsaLevel::portable;
  EXPECT_STREQ(choose("dequant_situ", dequant_situ_variants(), d, options).name, "portable");
}

TEST(DequantSituPlanning, TouchesNothing) {
  TestExec ex;
  Scene<bf16> s(2, 8, 1);
  dequant_situ(ex.planning(), s.args());
  EXPECT_TRUE(s.y.untouched() && s.scale.untouched());
}

}  // namespace
}  // namespace kdelta
