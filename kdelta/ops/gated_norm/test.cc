#include <gtest/gtest.h>

#include <cmath>

#include "kdelta/ops/gated_norm/variants.h"
#include "tests/support/op_test.h"
#include "tests/support/spread.h"

namespace kdelta {
namespace {

using test::Guarded;
using test::TestExec;

class GatedNorm : public test::OpVariantTest {
 protected:
  GatedNorm() : OpVariantTest("gated_norm") {}
};
KDELTA_INSTANTIATE_VARIANTS(GatedNorm, gated_norm_variants());

// Which optional parts a call has.
struct Form {
  bool weight, bias, residual, sum_out;
  GateActivation activation;
};

std::vector<Form> all_forms() {
  std::vector<Form> forms;
  for (int bits = 0; bits < 16; ++bits)
    for (auto activation : {GateActivation::sigmoid, GateActivation::silu})
      forms.push_back({(bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0, (bits & 8) != 0, activation});
  return forms;
}

// Every array of a call; X for x and residual, G for the gate, O for the outputs.
template <class X, class G, class O>
struct Call {
  Call(int64_t T, int64_t H, int64_t D)
      : x({T, H, D}), residual({T, H, D}), gate({T, H, D}), weight({D}), bias({D}), sum_out({T, H, D}), out({T, H, D}) {
    test::Rng rng(static_cast<uint64_t>(T * 1000003 + H * 1009 + D));
    fill_normal(x, rng, 2.0f, 0.3f);
    fill_normal(residual, rng, 1.0f);
    fill_normal(gate, rng, 3.0f);
    fill_normal(weight, rng, 0.5f, 1.0f);
    fill_normal(bias, rng, 0.5f);
  }
  GatedNormArgs args(const Form& f, float eps = 1e-5f) {
    GatedNormArgs a{.x = x.view(), .gate = gate.view(), .activation = f.activation, .eps = eps, .out = out.view()};
    if (f.weight) a.weight = weight;
    if (f.bias) a.bias = bias;
    if (f.residual) a.residual = residual.view();
    if (f.sum_out) a.sum_out = sum_out.view();
    return a;
  }
  Guarded<X> x, residual;
  Guarded<G> gate;
  Guarded<float> weight, bias;
  Guarded<O> sum_out, out;
};

// Half an ulp of the output's rounding, and fp32 arithmetic on the two terms before the gate.
template <class O>
double bound(double want, double terms) {
  return (std::is_same_v<O, bf16> ? 0x1p-8 : 0.0) * std::fabs(want) + 2e-6 * terms + 1e-30;
}

template <class X, class G, class O>
void compare_with_definition(TestExec& ex, const Form& f, int64_t T, int64_t H, int64_t D) {
  Call<X, G, O> c(T, H, D);
  const Guarded<X> x_before = c.x, residual_before = c.residual;
  const Guarded<G> gate_before = c.gate;
  gated_norm(ex, c.args(f));
  ASSERT_TRUE(c.out.guards_intact() && c.sum_out.guards_intact());
  ASSERT_TRUE(same_bits(c.x, x_before) && same_bits(c.residual, residual_before) && same_bits(c.gate, gate_before));
  for (int64_t r = 0; r < T * H; ++r) {
    auto s = [&](int64_t d) {
      return to_float(c.x[r * D + d]) + (f.residual ? double{to_float(c.residual[r * D + d])} : 0.0);
    };
    double sum = 0;
    for (int64_t d = 0; d < D; ++d) sum += s(d) * s(d);
    const double scale = 1 / std::sqrt(sum / static_cast<double>(D) + 1e-5);
    for (int64_t d = 0; d < D; ++d) {
      const double g = to_float(c.gate[r * D + d]);
      const double act = (f.activation == GateActivation::silu ? g : 1.0) / (1 + std::exp(-g));
      const double normed = s(d) * scale * (f.weight ? double{c.weight[d]} : 1.0),
                   bias = f.bias ? double{c.bias[d]} : 0.0;
      const double want = (normed + bias) * act;
      ASSERT_NEAR(to_float(c.out[r * D + d]), want,
                  bound<O>(want, (std::fabs(normed) + std::fabs(bias)) * std::fabs(act)))
          << "row " << r << " column " << d << " of " << T << "x" << H << "x" << D;
      if (f.sum_out) {
        ASSERT_NEAR(to_float(c.sum_out[r * D + d]), s(d), bound<O>(s(d), std::fabs(s(d))));
      }
    }
  }
}

TEST_P(GatedNorm, EqualsTheDefinitionAtEveryWidthAroundTheVectors) {
  for (int64_t D : {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 200, 512})
    for (auto activation : {GateActivation::sigmoid, GateActivation::silu}) {
      const Form f{true, false, false, false, activation};
      compare_with_definition<float, float, float>(ex, f, 3, 2, D);
      compare_with_definition<bf16, bf16, bf16>(ex, f, 3, 2, D);
    }
}

TEST_P(GatedNorm, EveryCombinationOfItsOptionsEqualsTheDefinitionAndKeepsTheInputs) {
  for (const Form& f : all_forms()) {
    compare_with_definition<float, float, float>(ex, f, 2, 3, 37);
    compare_with_definition<bf16, float, bf16>(ex, f, 2, 3, 37);
    compare_with_definition<bf16, bf16, float>(ex, f, 2, 3, 37);
    compare_with_definition<float, bf16, bf16>(ex, f, 2, 3, 37);
  }
}

TEST_P(GatedNorm, GivesTheSmallVectorOfTheArchitecturePage) {
  Call<float, float, float> c(1, 1, 4);
  const float x[] = {1, -2, 3, 0.5f}, weight[] = {1, 0.5f, 2, 1}, gate[] = {0, 1, -1, 2};
  const double want[] = {0.264906100, -0.387323753, 0.854930676, 0.233328518};
  for (int d = 0; d < 4; ++d) c.x[d] = x[d], c.weight[d] = weight[d], c.gate[d] = gate[d];
  gated_norm(ex, c.args({true, false, false, false, GateActivation::sigmoid}));
  for (int d = 0; d < 4; ++d) EXPECT_NEAR(c.out[d], want[d], 1e-6);
}

TEST_P(GatedNorm, EpsilonIsTheCallers) {
  Call<float, float, float> c(1, 1, 8);
  const Form plain{false, false, false, false, GateActivation::sigmoid};
  for (int d = 0; d < 8; ++d) c.x[d] = 1e-3f, c.gate[d] = 0;
  gated_norm(ex, c.args(plain, 1e-6f));
  EXPECT_NEAR(c.out[0], 0.5 / std::sqrt(2.0), 1e-6);
  gated_norm(ex, c.args(plain, 1e-5f));
  EXPECT_NEAR(c.out[0], 0.5 / std::sqrt(11.0), 1e-6);
}

TEST_P(GatedNorm, RowsPastTheLiveCountAreZeroWhateverTheyHold) {
  for (int32_t live : {0, 2, 4, 9}) {
    Call<bf16, bf16, bf16> c(4, 3, 20);
    const Form f{true, true, true, true, GateActivation::silu};
    gated_norm(ex, c.args(f));
    const Guarded<bf16> all = c.out, all_sums = c.sum_out;
    for (int64_t i = live * 60; i < 240; ++i) {
      c.x[i] = c.residual[i] = to_bf16(NAN);
      c.gate[i] = to_bf16(i % 2 == 0 ? NAN : INFINITY);
    }
    c.out = Guarded<bf16>({4, 3, 20}), c.sum_out = c.out;
    GatedNormArgs a = c.args(f);
    a.live = View<const int32_t>(&live, {1});
    gated_norm(ex, a);
    for (int64_t i = 0; i < 240; ++i) {
      EXPECT_EQ(c.out[i].bits, i < live * 60 ? all[i].bits : 0) << "live " << live << " element " << i;
      EXPECT_EQ(c.sum_out[i].bits, i < live * 60 ? all_sums[i].bits : 0) << "live " << live << " element " << i;
    }
  }
}

TEST_P(GatedNorm, StridedViewsOfAPackedProjectionEqualDenseOnes) {
  constexpr int64_t T = 5, H = 3, D = 24, gate_row = 100, wide = 31;
  Call<bf16, bf16, bf16> c(T, H, D);
  const Form f{true, false, false, true, GateActivation::sigmoid};
  gated_norm(ex, c.args(f));
  Guarded<bf16> gate({T, gate_row});
  test::copy_rows(gate.data() + 7, gate_row, c.gate.data(), H * D, T, H * D);
  const test::Spread<bf16> x(c.x, wide), out({T, H, D}, wide), sum({T, H, D}, wide);
  GatedNormArgs a = c.args(f);
  a.gate = AnyConstView(gate.view()).columns(7, H * D).split_last(H, D);
  a.x = x.view();
  a.out = out.view();
  a.sum_out = sum.view();
  gated_norm(ex, a);
  EXPECT_TRUE(out.rows_equal(c.out));
  EXPECT_TRUE(sum.rows_equal(c.sum_out));
  EXPECT_TRUE(out.gaps_intact() && sum.gaps_intact());
}

TEST_P(GatedNorm, InPlaceEqualsOutOfPlace) {
  for (const Form& f : all_forms()) {
    Call<bf16, float, bf16> c(3, 2, 50);
    gated_norm(ex, c.args(f));
    GatedNormArgs a = c.args(f);
    a.out = c.x.view();
    gated_norm(ex, a);
    EXPECT_TRUE(same_bits(c.x, c.out));
  }
}

TEST_P(GatedNorm, BitsOfARowDependNeitherOnItsCompanyNorOnTheThreads) {
  constexpr int64_t T = 90, H = 4, D = 130;
  Call<bf16, bf16, bf16> c(T, H, D);
  const Form f{true, false, true, false, GateActivation::sigmoid};
  gated_norm(ex, c.args(f));
  const Guarded<bf16> all = c.out;
  for (int threads : {1, 3}) {
    TestExec other(threads);
    force(other);
    c.out = Guarded<bf16>({T, H, D});
    gated_norm(other, c.args(f));
    EXPECT_TRUE(same_bits(c.out, all)) << threads << " threads";
  }
  Guarded<bf16> alone({1, H, D});
  GatedNormArgs a = c.args(f);
  for (int64_t t : {int64_t{0}, int64_t{41}, T - 1}) {
    GatedNormArgs one = a;
    one.x = a.x.rows(t, 1), one.gate = a.gate.rows(t, 1), one.residual = a.residual.rows(t, 1), one.out = alone.view();
    gated_norm(ex, one);
    EXPECT_TRUE(test::equal_bits(alone.data(), all.data() + t * H * D, H * D)) << "token " << t;
  }
}

TEST_P(GatedNorm, NaNStaysInItsHeadAndInTheGateInItsElement) {
  Call<float, float, float> c(2, 2, 20);
  c.x[20 + 3] = NAN;          // token 0, head 1
  c.gate[2 * 20 + 19] = NAN;  // token 1, head 0
  gated_norm(ex, c.args({true, false, false, false, GateActivation::sigmoid}));
  for (int64_t i = 0; i < 80; ++i) EXPECT_EQ(std::isnan(c.out[i]), (i >= 20 && i < 40) || i == 59) << i;
}

TEST_P(GatedNorm, ExtremeGatesSaturate) {
  Call<float, float, float> c(1, 1, 8);
  const float gate[] = {-INFINITY, -200, -90, -0.0f, 0, 90, 200, INFINITY};
  for (int d = 0; d < 8; ++d) c.x[d] = 1, c.gate[d] = gate[d];
  gated_norm(ex, c.args({false, false, false, false, GateActivation::sigmoid}, 0));
  const double want[] = {0, 0, 0, 0.5, 0.5, 1, 1, 1};
  for (int d = 0; d < 8; ++d) EXPECT_NEAR(c.out[d], want[d], 1e-6);
  gated_norm(ex, c.args({false, false, false, false, GateActivation::silu}, 0));
  const double silu[] = {NAN, 0, 0, 0, 0, 90, 200, INFINITY};  // first: -inf * 0
  for (int d = 1; d < 7; ++d) EXPECT_NEAR(c.out[d], silu[d], 1e-4) << d;
  EXPECT_TRUE(std::isnan(c.out[0]));
  EXPECT_EQ(c.out[7], INFINITY);
}

TEST_P(GatedNorm, NoTokensIsLegal) {
  Call<float, float, float> c(0, 3, 8);
  gated_norm(ex, c.args({true, false, false, false, GateActivation::sigmoid}));
  EXPECT_TRUE(c.out.guards_intact());
}

TEST_P(GatedNorm, OffsetsPastTwoToThe32ndElementAreExact) {
  constexpr int64_t D = 6, row = int64_t{1} << 31;
  Call<bf16, bf16, bf16> c(3, 1, D);
  const Form f{true, false, false, false, GateActivation::sigmoid};
  gated_norm(ex, c.args(f));
  const test::Far<bf16> x(c.x, row), out({3, 1, D}, row);
  GatedNormArgs a = c.args(f);
  a.x = x.view();
  a.out = out.view();
  gated_norm(ex, a);
  EXPECT_TRUE(out.rows_equal(c.out));
}

TEST(GatedNormRefuses, OverlapsByNameBeforeAnythingIsWrittenAndTakesColumnsOfOneBuffer) {
  TestExec ex;
  constexpr int64_t T = 3, H = 2, D = 8;
  Call<float, float, float> c(T, H, D);
  const GatedNormArgs good = c.args({true, true, true, true, GateActivation::sigmoid});
  auto with = [&](auto change) {
    GatedNormArgs a = good;
    change(a);
    return test::error_of([&] { gated_norm(ex, a); });
  };
  const std::string own = ", expected memory of its own";
  // Two windows of T rows on T + 1 rows, and two column ranges of wider rows.
  Guarded<float> longer({T + 1, H, D}), packed({T, 2 * H * D});
  test::Rng rng(1);
  fill_normal(longer, rng);
  fill_normal(packed, rng);
  const AnyView rows = AnyView(longer.view()).rows(0, T), next = AnyView(longer.view()).rows(1, T);
  const AnyView left = AnyView(packed.view()).columns(0, H * D).split_last(H, D),
                right = AnyView(packed.view()).columns(H * D, H * D).split_last(H, D),
                middle = AnyView(packed.view()).columns(3, H * D).split_last(H, D);
  EXPECT_EQ(with([&](GatedNormArgs& a) { a.x = rows, a.out = next; }),
            "gated_norm: out: overlaps x without being x" + own);
  EXPECT_EQ(with([&](GatedNormArgs& a) { a.x = left, a.out = middle; }),
            "gated_norm: out: overlaps x without being x" + own);
  EXPECT_EQ(with([&](GatedNormArgs& a) { a.out = c.gate.view(); }), "gated_norm: out: overlaps gate" + own);
  EXPECT_EQ(with([&](GatedNormArgs& a) { a.out = c.residual.view(); }), "gated_norm: out: overlaps residual" + own);
  EXPECT_EQ(with([&](GatedNormArgs& a) { a.sum_out = c.x.view(); }), "gated_norm: sum_out: overlaps x" + own);
  EXPECT_EQ(with([&](GatedNormArgs& a) { a.gate = rows, a.sum_out = next; }),
            "gated_norm: sum_out: overlaps gate" + own);
  EXPECT_EQ(with([&](GatedNormArgs& a) { a.sum_out = c.residual.view(); }),
            "gated_norm: sum_out: overlaps residual" + own);
  EXPECT_EQ(with([&](GatedNormArgs& a) { a.sum_out = c.out.view(); }), "gated_norm: sum_out: overlaps out" + own);
  EXPECT_TRUE(c.out.untouched() && c.sum_out.untouched());
  EXPECT_EQ(with([&](GatedNormArgs& a) { a.x = left, a.out = right; }), "no error");
}

TEST(GatedNormRefuses, WrongArgumentsByName) {
  TestExec ex;
  Call<float, float, float> c(2, 3, 8);
  const GatedNormArgs good = c.args({true, true, true, true, GateActivation::sigmoid});
  auto with = [&](auto change) {
    GatedNormArgs a = good;
    change(a);
    return test::error_of([&] { gated_norm(ex, a); });
  };
  EXPECT_EQ(with([](GatedNormArgs&) {}), "no error");
  EXPECT_EQ(with([](GatedNormArgs& a) { a.x.dtype = DType::f16; }), "gated_norm: x: dtype F16, accepted: F32, BF16");
  EXPECT_EQ(with([](GatedNormArgs& a) { a.gate.dtype = DType::f16; }),
            "gated_norm: gate: dtype F16, accepted: F32, BF16");
  EXPECT_EQ(with([](GatedNormArgs& a) { a.residual.dtype = DType::f16; }),
            "gated_norm: residual: dtype F16, accepted: F32, BF16");
  EXPECT_EQ(with([](GatedNormArgs& a) { a.sum_out.dtype = DType::f16; }),
            "gated_norm: sum_out: dtype F16, accepted: F32, BF16");
  EXPECT_EQ(with([](GatedNormArgs& a) { a.out.dtype = DType::f16; }),
            "gated_norm: out: dtype F16, accepted: F32, BF16");
  EXPECT_EQ(with([](GatedNormArgs& a) {
              a.x.shape = Shape{2, 24};
            }),
            "gated_norm: x: shape [2, 24], expected [T, H, D]");
  EXPECT_EQ(with([](GatedNormArgs& a) {
              a.gate.shape = Shape{2, 4, 6};
            }),
            "gated_norm: gate: shape [2, 4, 6], expected [2, 3, 8]");
  EXPECT_EQ(with([](GatedNormArgs& a) { a.gate.data = nullptr; }),
            "gated_norm: gate: null pointer for shape [2, 3, 8]");
  EXPECT_EQ(with([](GatedNormArgs& a) { a.weight.shape = Shape{7}; }), "gated_norm: weight: shape [7], expected [8]");
  EXPECT_EQ(with([](GatedNormArgs& a) { a.bias.shape = Shape{9}; }), "gated_norm: bias: shape [9], expected [8]");
  EXPECT_EQ(with([](GatedNormArgs& a) { a.out.stride[2] = 2; }),
            "gated_norm: out: stride 2 on the last axis, expected 1");
  EXPECT_EQ(with([](GatedNormArgs& a) { a.eps = -1; }), "gated_norm: eps: -1, expected >= 0");
  EXPECT_THAT(with([](GatedNormArgs& a) { a.eps = NAN; }), testing::HasSubstr("gated_norm: eps"));
}

TEST(GatedNormChoice, TakesTheBestRowOfTheProcessor) {
  Options options;
  GatedNormDesc d{.target = {.isa = IsaLevel::amx}, .rows = 1, .heads = 1, .width = 8};
  EXPECT_STREQ(choose("gated_norm", gated_norm_variants(), d, options).name, "avx512");
  d.target.isa = IsaLevel::avx2;
  EXPECT_STREQ(choose("gated_norm", gated_norm_variants(), d, options).name, "avx2");
  d.target.isa = IsaLevel::portable;
  EXPECT_STREQ(choose("gated_norm", gated_norm_variants(), d, options).name, "portable");
}

TEST(GatedNormPlanning, TakesItsScratchAndTouchesNothing) {
  TestExec ex;
  Exec planning = ex.planning();
  Arena measuring = Arena::measuring(Device{});
  planning.scratch = &measuring;
  Call<float, float, float> c(2, 3, 8);
  gated_norm(planning, c.args({true, false, false, true, GateActivation::sigmoid}));
  EXPECT_TRUE(c.out.untouched() && c.sum_out.untouched());
  EXPECT_GE(measuring.peak(), 2 * 64);
  EXPECT_EQ(measuring.used(), 0);
}

}  // namespace
}  // namespace kdelta
