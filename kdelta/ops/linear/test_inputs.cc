// Inputs in MXFP8: given as codes, or quantised on the way in.
#include <gtest/gtest.h>

#include "kdelta/ops/linear/test_weights.h"
#include "kdelta/ops/linear/variants.h"
#include "kdelta/ops/mx_quant/mx_quant.h"
#include "tests/support/op_test.h"
#include "tests/support/spread.h"

namespace kdelta {
namespace {

using test::Guarded;
using test::TestExec;
using test::TestWeights;

class LinearInputs : public test::OpVariantTest {
 protected:
  LinearInputs() : OpVariantTest("linear") {}
  bool serves(DType x, DType w) const {
    for (const LinearVariant& row : linear_variants())
      if (row.name == GetParam())
        return refusal(row, LinearDesc{.target = {.isa = detect_isa()}, .x = x, .w = w, .out = x}) == nullptr;
    return false;
  }
};
KDELTA_INSTANTIATE_VARIANTS(LinearInputs, linear_variants());

constexpr MxInput kInputs[] = {{DType::f8_e4m3, MxScaleRule::floor},
                               {DType::f8_e4m3, MxScaleRule::rceil},
                               {DType::f8_e4m3, MxScaleRule::even},
                               {DType::f8_e5m2, MxScaleRule::floor}};

struct Codes {
  Codes(const Exec& ex, const AnyConstView& x, const MxInput& input)
      : format(input.format), codes(x.shape), scale({x.dim(0), mx_scale_bytes(x.dim(1))}) {
    mx_quantize(ex, {.format = format, .rule = input.rule, .x = x, .codes = codes.view(), .scale = scale.view()});
  }
  AnyConstView view() { return {codes.data(), format, codes.shape()}; }
  DType format;
  Guarded<uint8_t> codes, scale;
};

template <class In>
void expect_one_answer(TestExec& ex, DType wtype, int64_t T, int64_t K, const MxInput& input) {
  SCOPED_TRACE(str(dtype_name(wtype), " T ", T, " K ", K, " rule ", static_cast<int>(input.rule)));
  constexpr int64_t kRows[] = {33, 48};
  test::Rng rng(static_cast<uint64_t>(T + K));
  Guarded<In> x({T, K}), values({T, K});
  fill_normal(x, rng, 3.0f);
  TestWeights a(wtype, kRows[0], K, rng()), b(wtype, kRows[1], K, rng());
  Codes codes(ex, x.view(), input);
  mx_dequantize(ex, {.format = input.format, .codes = codes.codes, .scale = codes.scale, .out = values.view()});
  Guarded<In> want[] = {Guarded<In>({T, kRows[0]}), Guarded<In>({T, kRows[1]})},
              split[] = {Guarded<In>({T, kRows[0]}), Guarded<In>({T, kRows[1]})},
              unsplit[] = {Guarded<In>({T, kRows[0]}), Guarded<In>({T, kRows[1]})};
  linear(ex, {.x = values.view(), .w = a, .out = want[0].view()});
  linear(ex, {.x = values.view(), .w = b, .out = want[1].view()});
  const LinearPart given{b, split[1].view()};
  linear(ex, {.x = codes.view(), .w = a, .out = split[0].view(), .more = {&given, 1}, .x_scale = codes.scale.view()});
  Matrix wa = a, wb = b;
  wa.input = wb.input = input;
  const LinearPart inside{wb, unsplit[1].view()};
  linear(ex, {.x = x.view(), .w = wa, .out = unsplit[0].view(), .more = {&inside, 1}});
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(same_bits(split[i], want[i])) << "part " << i;
    EXPECT_TRUE(same_bits(unsplit[i], want[i])) << "part " << i;
    EXPECT_TRUE(split[i].guards_intact() && unsplit[i].guards_intact());
  }
}

// Rows 8 and 15: one meaning, whoever quantises. Also the order of sums, which is that of any x.
TEST_P(LinearInputs, CodesAndInputsQuantisedInsideHaveTheBitsOfTheirValues) {
  for (DType w : {DType::f8_e4m3, DType::f4_e2m1, DType::bf16})
    for (const MxInput& input : kInputs)
      for (int64_t T : {1, 3, 19}) {
        if (serves(DType::f32, w)) expect_one_answer<float>(ex, w, T, 96, input);
        if (serves(DType::bf16, w)) expect_one_answer<bf16>(ex, w, T, 96, input);
      }
  // More columns than a tile of the quantiser and a segment of the sums.
  if (serves(DType::bf16, DType::f8_e4m3)) expect_one_answer<bf16>(ex, DType::f8_e4m3, 2, 8256, kInputs[1]);
}

TEST_P(LinearInputs, ARowDependsOnItselfAloneWhereverItLies) {
  constexpr int64_t T = 37, K = 128, N = 40;
  test::Rng rng(2);
  Guarded<bf16> x({T, K}), all({T, N});
  fill_normal(x, rng);
  TestWeights weights(DType::f8_e4m3, N, K, 4);
  Matrix w = weights;
  w.input = kInputs[2];
  linear(ex, {.x = x.view(), .w = w, .out = all.view()});
  for (int threads : {1, 3}) {
    TestExec other(threads);
    force(other);
    const test::Spread<bf16> spread(x, K + 6, 2);
    for (int64_t t : {0, 5, 36}) {
      Guarded<bf16> one({1, N});
      linear(other, {.x = AnyConstView(spread.view()).rows(t, 1), .w = w, .out = one.view()});
      EXPECT_TRUE(test::equal_bits(one.data(), all.data() + t * N, N)) << t;
    }
  }
}

TEST_P(LinearInputs, ANaNStaysInItsRow) {
  Guarded<float> x({3, 64}), out({3, 16});
  for (int64_t i = 0; i < x.size(); ++i) x[i] = 1;
  x[64 + 40] = NAN;
  TestWeights weights(DType::f8_e4m3, 16, 64, 4);
  Matrix w = weights;
  w.input = kInputs[0];
  if (!serves(DType::f32, DType::f8_e4m3)) return;
  linear(ex, {.x = x.view(), .w = w, .out = out.view()});
  for (int64_t i = 0; i < out.size(); ++i) EXPECT_EQ(std::isnan(out[i]), i / 16 == 1) << i;
}

TEST(LinearRefuses, WrongQuantisedInputsByName) {
  TestExec ex;
  Guarded<float> x({2, 64}), out({2, 16}), part({2, 16});
  for (int64_t i = 0; i < x.size(); ++i) x[i] = 1;
  Codes codes(ex, x.view(), kInputs[0]);
  TestWeights weights(DType::f8_e4m3, 16, 64, 4);
  const auto with = [&](auto change) {
    LinearArgs a{.x = codes.view(), .w = weights, .out = out.view(), .x_scale = codes.scale.view()};
    LinearPart more{weights, part.view()};
    change(a, more);
    if (more.w.input.quantised()) a.more = {&more, 1};
    return test::error_of([&] { linear(ex, a); });
  };
  EXPECT_EQ(with([](auto&, auto&) {}), "no error");
  EXPECT_EQ(with([](LinearArgs& a, auto&) { a.x_scale = {}; }), "linear: x_scale: shape [], expected [2, 2]");
  EXPECT_EQ(with([](LinearArgs& a, auto&) { a.x_scale.data = nullptr; }),
            "linear: x_scale: null pointer for shape [2, 2]");
  EXPECT_EQ(with([&](LinearArgs& a, auto&) { a.x = x.view(); }),
            "linear: x_scale: given, but x is F32, expected codes");
  EXPECT_EQ(with([](LinearArgs& a, auto&) { a.w.input = kInputs[3]; }),
            "linear: x: dtype F8_E4M3, the matrix takes F8_E5M2");
  EXPECT_EQ(with([](auto&, LinearPart& p) { p.w.input = kInputs[1]; }),
            "linear: more: w: takes other inputs than the first part");
  Guarded<float> thin({2, 40}), w({16, 40});
  Matrix narrow = dense_matrix(w.data(), DType::f32, 16, 40);
  narrow.input = kInputs[0];
  EXPECT_EQ(test::error_of([&] { linear(ex, {.x = thin.view(), .w = narrow, .out = out.view()}); }),
            "linear: x: 40 columns to be quantised, expected a multiple of 32");
}

}  // namespace
}  // namespace kdelta
