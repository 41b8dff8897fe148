// Merge table, MX-SiTU: the fused form is the activation op and then the quantiser, byte for byte.
#include <gtest/gtest.h>

#include <cmath>

#include "kdelta/ops/activation/activation.h"
#include "kdelta/ops/mx_quant/test_oracle.h"
#include "tests/support/spread.h"

namespace kdelta {
namespace {

using test::Guarded;
using test::kMxFormats;
using test::kMxRules;
using test::MxResult;
using test::TestExec;

class SituMx : public test::OpVariantTest {
 protected:
  SituMx() : OpVariantTest("mx_quantize") { ex.force("activation", GetParam()); }
};
KDELTA_INSTANTIATE_VARIANTS(SituMx, mx_quantize_variants());

struct Form {
  float beta = 4, linear_beta = 25;
  bool activate_left = true;
};

template <class In>
MxQuantizeArgs fused(MxResult& out, Guarded<In>& x, const Form& form, MxScaleRule rule = MxScaleRule::floor) {
  MxQuantizeArgs a = out.args(x, rule);
  a.situ = true;
  a.beta = form.beta;
  a.linear_beta = form.linear_beta;
  a.activate_left = form.activate_left;
  return a;
}

template <class In>
void expect_two_steps(TestExec& ex, Guarded<In>& x, const Form& form, DType format, MxScaleRule rule) {
  const int64_t T = x.shape()[0], N = x.shape()[1] / 2;
  MxResult got(format, T, N);
  mx_quantize(ex, fused(got, x, form, rule));
  Guarded<bf16> y({T, N});
  const AnyConstView both = x.view();
  activation(ex, {.kind = ActivationKind::situ,
                  .beta = form.beta,
                  .linear_beta = form.linear_beta,
                  .gate = both.columns(form.activate_left ? 0 : N, N),
                  .up = both.columns(form.activate_left ? N : 0, N),
                  .out = y.view()});
  const MxResult want = test::quantised(ex, y, format, rule);
  EXPECT_TRUE(same_bits(got.codes, want.codes) && same_bits(got.scale, want.scale))
      << dtype_name(format) << " " << T << "x" << N;
  EXPECT_TRUE(got.codes.guards_intact() && got.scale.guards_intact());
}

TEST_P(SituMx, EqualsTheActivationRoundedToBf16AndThenQuantised) {
  for (DType format : kMxFormats)
    for (MxScaleRule rule : kMxRules)
      for (int64_t N : {1, 2, 7, 31, 32, 33, 64, 65, 100, 8192, 8230})
        for (const Form& form : {Form{}, Form{.activate_left = false}, Form{.beta = 1, .linear_beta = 0}}) {
          test::Rng rng(static_cast<uint64_t>(N));
          Guarded<bf16> half({2, 2 * N});
          Guarded<float> single({2, 2 * N});
          fill_normal(half, rng, 3.0f);
          fill_normal(single, rng, 3.0f);
          expect_two_steps(ex, half, form, format, rule);
          expect_two_steps(ex, single, form, format, rule);
        }
}

TEST_P(SituMx, GateAndUpAreNotExchanged) {
  Guarded<float> x({1, 64});
  for (int64_t c = 0; c < 32; ++c) x[c] = 10, x[32 + c] = -1;
  MxResult left(DType::f8_e4m3, 1, 32), right(DType::f8_e4m3, 1, 32);
  mx_quantize(ex, fused(left, x, {}));
  mx_quantize(ex, fused(right, x, {.activate_left = false}));
  // 4 tanh(10/4) sigmoid(10) * 25 tanh(-1/25) = -3.944, and 4 tanh(-1/4) sigmoid(-1) * 25 tanh(10/25) = -2.503.
  EXPECT_EQ(left.code(0, 0), 0xfe);  // -448 * 2^-7 = -3.5: floor saturates
  EXPECT_EQ(left.scale[0], 120);
  EXPECT_EQ(right.code(0, 0), 0xfa);  // -320 * 2^-7 = -2.5
  EXPECT_EQ(right.scale[0], 120);
}

TEST_P(SituMx, ANaNOrAnInfinityWithoutCapPoisonsItsBlockAlone) {
  for (const bool capped : {true, false}) {
    Guarded<float> x({1, 192});
    for (int64_t c = 0; c < 192; ++c) x[c] = 1.0f + static_cast<float>(c) / 100;
    x[40] = NAN;
    x[96 + 70] = INFINITY;  // up
    MxResult got(DType::f8_e4m3, 1, 96);
    mx_quantize(ex, fused(got, x, {.linear_beta = capped ? 25.0f : 0.0f}));
    EXPECT_LT(got.scale[0], 255);
    EXPECT_EQ(got.scale[1], 255);
    EXPECT_EQ(got.scale[2] == 255, !capped);  // the cap makes of an infinite branch its bound
  }
}

TEST_P(SituMx, RowsBehindTheCountsAreNeitherReadNorWritten) {
  Guarded<bf16> x({4, 66});
  test::Rng rng(1);
  fill_normal(x, rng);
  const int64_t counts[] = {1, 1};
  MxResult got(DType::f8_e4m3, 4, 33);
  MxQuantizeArgs a = fused(got, x, {});
  a.group_counts = View<const int64_t>(counts, {2});
  mx_quantize(ex, a);
  EXPECT_TRUE(got.codes.is_poison(2 * 33, 2 * 33) && got.scale.is_poison(4, 4));
  EXPECT_FALSE(got.codes.is_poison(33, 33));
}

TEST(SituMxRefuses, WrongArgumentsByName) {
  TestExec ex;
  Guarded<bf16> x({2, 66});
  for (int64_t i = 0; i < x.size(); ++i) x[i] = to_bf16(1);
  MxResult out(DType::f8_e4m3, 2, 33);
  auto with = [&](auto change) {
    MxQuantizeArgs a = fused(out, x, {});
    change(a);
    return test::error_of([&] { mx_quantize(ex, a); });
  };
  EXPECT_EQ(with([](MxQuantizeArgs&) {}), "no error");
  EXPECT_EQ(with([](MxQuantizeArgs& a) {
              a.x.shape = Shape{2, 65};
            }),
            "mx_quantize: x: 65 columns, expected an even number: gate and up");
  EXPECT_EQ(with([](MxQuantizeArgs& a) { a.beta = 0; }), "mx_quantize: beta: 0, expected > 0");
  EXPECT_THAT(with([](MxQuantizeArgs& a) { a.beta = NAN; }), testing::HasSubstr("mx_quantize: beta"));
  EXPECT_THAT(with([](MxQuantizeArgs& a) { a.linear_beta = -1; }),
              testing::HasSubstr("mx_quantize: linear_beta: -1, expected >= 0"));
  EXPECT_EQ(with([](MxQuantizeArgs& a) {
              a.codes.shape = Shape{2, 66};
            }),
            "mx_quantize: codes: shape [2, 66], expected [2, 33]");
}

}  // namespace
}  // namespace kdelta
