#include <gtest/gtest.h>

#include <cmath>

#include "kdelta/ops/activation/variants.h"
#include "tests/support/op_test.h"
#include "tests/support/spread.h"

namespace kdelta {
namespace {

using test::Guarded;
using test::TestExec;

class Activation : public test::OpVariantTest {
 protected:
  Activation() : OpVariantTest("activation") {}
};
KDELTA_INSTANTIATE_VARIANTS(Activation, activation_variants());

struct Form {
  ActivationKind kind;
  float beta, linear_beta;
};
constexpr Form kForms[] = {{ActivationKind::swiglu, 1, 0},
                           {ActivationKind::sigmoid_gate, 1, 0},
                           {ActivationKind::situ, 4, 25},
                           {ActivationKind::situ, 1, 0},
                           {ActivationKind::situ, 3, 7}};

double definition(const Form& f, double g, double u) {
  const double sigmoid = 1 / (1 + std::exp(-g));
  if (f.kind == ActivationKind::swiglu) return g * sigmoid * u;
  if (f.kind == ActivationKind::sigmoid_gate) return sigmoid * u;
  return f.beta * std::tanh(g / f.beta) * sigmoid *
         (f.linear_beta > 0 ? f.linear_beta * std::tanh(u / f.linear_beta) : u);
}

ActivationArgs args(const Form& f, const AnyConstView& gate, const AnyConstView& up, const AnyView& out) {
  return {.kind = f.kind, .beta = f.beta, .linear_beta = f.linear_beta, .gate = gate, .up = up, .out = out};
}

// Half an ulp of the output's rounding, and a few ulp of each factor.
template <class O>
double bound(double want) {
  return (std::is_same_v<O, bf16> ? 0x1p-8 + 2e-6 : 2e-6) * std::fabs(want) + 1e-30;
}

template <class G, class U, class O>
void compare_with_definition(TestExec& ex, const Form& f, int64_t T, int64_t N, float scale) {
  test::Rng rng(static_cast<uint64_t>(T * 100003 + N));
  Guarded<G> gate({T, N});
  Guarded<U> up({T, N});
  Guarded<O> out({T, N});
  fill_normal(gate, rng, scale);
  fill_normal(up, rng, 2 * scale);
  activation(ex, args(f, gate.view(), up.view(), out.view()));
  ASSERT_TRUE(out.guards_intact());
  for (int64_t i = 0; i < T * N; ++i) {
    const double want = definition(f, to_float(gate[i]), to_float(up[i]));
    ASSERT_NEAR(to_float(out[i]), want, bound<O>(want))
        << to_float(gate[i]) << ", " << to_float(up[i]) << " of " << T << "x" << N;
  }
}

TEST_P(Activation, EqualsTheDefinitionAtEveryWidthAroundTheVectorsAndTiles) {
  for (const Form& f : kForms)
    for (int64_t N : {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 65, 1000, 8191, 8192, 8193, 16400}) {
      compare_with_definition<float, float, float>(ex, f, 3, N, 2);
      compare_with_definition<bf16, bf16, bf16>(ex, f, 1, N, 2);
    }
}

TEST_P(Activation, EveryMixOfElementTypesEqualsTheDefinition) {
  for (const Form& f : kForms) {
    compare_with_definition<float, float, bf16>(ex, f, 2, 37, 2);
    compare_with_definition<float, bf16, float>(ex, f, 2, 37, 2);
    compare_with_definition<float, bf16, bf16>(ex, f, 2, 37, 2);
    compare_with_definition<bf16, float, float>(ex, f, 2, 37, 2);
    compare_with_definition<bf16, float, bf16>(ex, f, 2, 37, 2);
    compare_with_definition<bf16, bf16, float>(ex, f, 2, 37, 2);
  }
}

TEST_P(Activation, KeepsItsRelativeErrorForTinyAndForHugeInputs) {
  for (const Form& f : kForms)
    for (float scale : {1e-30f, 1e-6f, 1e-3f, 0.1f, 30.0f})
      compare_with_definition<float, float, float>(ex, f, 5, 77, scale);
}

TEST_P(Activation, GivesTheSmallVectorsOfTheArchitecturePage) {
  Guarded<float> gate({1, 4}), up({1, 4}), out({1, 4});
  const float g[] = {1, -2, 10, 0.5f}, u[] = {1, 3, 50, -8};
  const double want[] = {0.715817828, -0.657873819, 95.108021534, -2.395728615};
  for (int i = 0; i < 4; ++i) gate[i] = g[i], up[i] = u[i];
  activation(ex, args({ActivationKind::situ, 4, 25}, gate.view(), up.view(), out.view()));
  for (int i = 0; i < 4; ++i) EXPECT_NEAR(out[i], want[i], 3e-7 * std::fabs(want[i]));
}

TEST_P(Activation, SituStaysWithinItsCapForAnyInput) {
  constexpr int64_t N = 9;
  const float extremes[N] = {-INFINITY, -3e38f, -100, -1e-40f, 0, 1e-40f, 100, 3e38f, INFINITY};
  Guarded<float> gate({N, N}), up({N, N}), out({N, N});
  for (int64_t i = 0; i < N * N; ++i) gate[i] = extremes[i / N], up[i] = extremes[i % N];
  activation(ex, args({ActivationKind::situ, 4, 25}, gate.view(), up.view(), out.view()));
  for (int64_t i = 0; i < N * N; ++i) {
    EXPECT_LE(std::fabs(out[i]), 100.0f) << gate[i] << ", " << up[i];
    EXPECT_NEAR(out[i], definition({ActivationKind::situ, 4, 25}, gate[i], up[i]), 1e-4) << gate[i] << ", " << up[i];
  }
}

TEST_P(Activation, NaNStaysInItsElement) {
  for (const Form& f : kForms) {
    Guarded<float> gate({2, 20}), up({2, 20}), out({2, 20});
    test::Rng rng(1);
    fill_normal(gate, rng);
    fill_normal(up, rng);
    gate[3] = NAN;
    up[39] = NAN;
    activation(ex, args(f, gate.view(), up.view(), out.view()));
    for (int64_t i = 0; i < 40; ++i) EXPECT_EQ(std::isnan(out[i]), i == 3 || i == 39) << i;
  }
}

TEST_P(Activation, StridedHalvesOfOnePackedProjectionEqualDenseOnes) {
  constexpr int64_t T = 4, N = 45, stride = 2 * N + 3;
  for (const Form& f : kForms) {
    Guarded<bf16> gate({T, N}), up({T, N}), want({T, N}), packed({T, stride});
    const test::Spread<bf16> out({T, N}, stride, 1);
    test::Rng rng(2);
    fill_normal(gate, rng);
    fill_normal(up, rng);
    test::copy_rows(packed.data(), stride, gate.data(), N, T, N);
    test::copy_rows(packed.data() + N, stride, up.data(), N, T, N);
    activation(ex, args(f, gate.view(), up.view(), want.view()));
    const AnyConstView both = packed.view();
    activation(ex, args(f, both.columns(0, N), both.columns(N, N), out.view()));
    EXPECT_TRUE(out.rows_equal(want));
    EXPECT_TRUE(out.gaps_intact());
  }
}

TEST_P(Activation, InPlaceOnEitherInputEqualsOutOfPlace) {
  for (const Form& f : kForms) {
    Guarded<bf16> gate({3, 70}), up({3, 70}), out({3, 70});
    test::Rng rng(4);
    fill_normal(gate, rng);
    fill_normal(up, rng);
    activation(ex, args(f, gate.view(), up.view(), out.view()));
    Guarded<bf16> copy = gate;
    activation(ex, args(f, copy.view(), up.view(), copy.view()));
    EXPECT_TRUE(same_bits(copy, out));
    activation(ex, args(f, gate.view(), up.view(), up.view()));
    EXPECT_TRUE(same_bits(up, out));
  }
}

TEST_P(Activation, BitsOfARowDependNeitherOnItsCompanyNorOnTheThreads) {
  constexpr int64_t T = 50, N = 700;
  const Form f = kForms[2];
  Guarded<bf16> gate({T, N}), up({T, N}), all({T, N}), alone({1, N});
  test::Rng rng(5);
  fill_normal(gate, rng);
  fill_normal(up, rng);
  activation(ex, args(f, gate.view(), up.view(), all.view()));
  for (int threads : {1, 3}) {
    TestExec other(threads);
    force(other);
    Guarded<bf16> out({T, N});
    activation(other, args(f, gate.view(), up.view(), out.view()));
    EXPECT_TRUE(same_bits(out, all));
  }
  for (int64_t t : {int64_t{0}, int64_t{23}, T - 1}) {
    activation(ex, args(f, AnyConstView(gate.view()).rows(t, 1), AnyConstView(up.view()).rows(t, 1), alone.view()));
    EXPECT_TRUE(test::equal_bits(alone.data(), all.data() + t * N, N));
  }
}

TEST_P(Activation, NoRowsAndNoColumnsAreLegal) {
  Guarded<float> none({0, 8}), thin({8, 0});
  activation(ex, args(kForms[0], none.view(), none.view(), none.view()));
  activation(ex, args(kForms[0], thin.view(), thin.view(), thin.view()));
  EXPECT_TRUE(none.guards_intact() && thin.guards_intact());
}

TEST_P(Activation, OffsetsPastTwoToThe32ndElementAreExact) {
  constexpr int64_t N = 6, row = int64_t{1} << 31;
  Guarded<bf16> gate({3, N}), up({3, N}), want({3, N});
  test::Rng rng(6);
  fill_normal(gate, rng);
  fill_normal(up, rng);
  activation(ex, args(kForms[2], gate.view(), up.view(), want.view()));
  const test::Far<bf16> far(gate, row);
  activation(ex, args(kForms[2], far.view(), up.view(), far.view()));
  EXPECT_TRUE(far.rows_equal(want));
}

TEST(ActivationRefuses, WrongArgumentsByName) {
  TestExec ex;
  Guarded<float> gate({2, 8}), up({2, 8}), out({2, 8});
  const ActivationArgs good = args(kForms[2], gate.view(), up.view(), out.view());
  auto with = [&](auto change) {
    ActivationArgs a = good;
    change(a);
    return test::error_of([&] { activation(ex, a); });
  };
  EXPECT_EQ(with([](ActivationArgs&) {}), "no error");
  EXPECT_EQ(with([](ActivationArgs& a) { a.gate.shape = Shape{16}; }), "activation: gate: shape [16], expected [T, N]");
  EXPECT_EQ(with([](ActivationArgs& a) { a.up.shape = Shape{2, 7}; }), "activation: up: shape [2, 7], expected [2, 8]");
  EXPECT_EQ(with([](ActivationArgs& a) { a.up.dtype = DType::f16; }), "activation: up: dtype F16, accepted: F32, BF16");
  EXPECT_EQ(with([](ActivationArgs& a) { a.out.data = nullptr; }), "activation: out: null pointer for shape [2, 8]");
  EXPECT_EQ(with([](ActivationArgs& a) { a.out.stride[1] = 2; }),
            "activation: out: stride 2 on the last axis, expected 1");
  EXPECT_EQ(with([](ActivationArgs& a) { a.beta = 0; }), "activation: beta: 0, expected > 0");
  EXPECT_THAT(with([](ActivationArgs& a) { a.beta = NAN; }), testing::HasSubstr("activation: beta"));
  EXPECT_THAT(with([](ActivationArgs& a) { a.linear_beta = -1; }),
              testing::HasSubstr("activation: linear_beta: -1, expected >= 0"));
}

TEST(ActivationChoice, TakesTheBestRowOfTheProcessor) {
  Options options;
  ActivationDesc d{.target = {.isa = IsaLevel::amx}, .rows = 1, .width = 8};
  EXPECT_STREQ(choose("activation", activation_variants(), d, options).name, "avx512");
  d.target.isa = IsaLevel::avx2;
  EXPECT_STREQ(choose("activation", activation_variants(), d, options).name, "avx2");
  d.target.isa = IsaLevel::portable;
  EXPECT_STREQ(choose("activation", activation_variants(), d, options).name, "portable");
}

TEST(ActivationPlanning, TouchesNothing) {
  TestExec ex;
  Guarded<float> gate({2, 8}), up({2, 8}), out({2, 8});
  activation(ex.planning(), args(kForms[0], gate.view(), up.view(), out.view()));
  EXPECT_TRUE(out.untouched());
}

}  // namespace
}  // namespace kdelta
