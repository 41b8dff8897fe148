#include <gtest/gtest.h>

#include "kdelta/ops/short_conv/test_case.h"

namespace kdelta {
namespace {

using test::ConvRows;
using test::ConvWorld;
using test::Guarded;
using test::TestExec;

class ShortConv : public test::OpVariantTest {
 protected:
  ShortConv() : OpVariantTest("short_conv") {}
};
KDELTA_INSTANTIATE_VARIANTS(ShortConv, short_conv_variants());

// Half an ulp of the output's rounding; fp32 products and sums in front of it. SiLU has a slope below 1.1.
template <class E>
double bound(double want, double magnitude) {
  return (std::is_same_v<E, bf16> ? 0x1p-8 : 1e-6) * std::fabs(want) + 1e-6 * magnitude + 1e-30;
}

// Sequences of 0, 1, 2, 3, 5 and 17 tokens, alternately fresh and continued from a random window.
template <class E>
void compare_with_definition(TestExec& ex, int64_t W, int64_t C, ConvActivation activation) {
  ConvWorld<E> w(W, C, 1, 8, static_cast<uint64_t>(W * 10000 + C));
  fill_normal(w.state, w.rng);
  const Guarded<E> before = w.state;
  ConvRows rows;
  int slot = 1;
  for (int len : {0, 1, 2, 3, 5, 17}) rows.prefill(len, slot, slot % 2 == 0), ++slot;
  Guarded<E> x = w.inputs(rows.tokens());
  const Guarded<E> out = w.run(ex, x, rows, activation);
  for (size_t n = 0; n < rows.fresh.size(); ++n) {
    std::vector<const E*> past;
    const int64_t history = rows.fresh[n] ? 0 : W - 1;
    for (int64_t j = 0; j < history; ++j) past.push_back(before.data() + (rows.slots[n] * w.R + j) * C);
    for (int t = rows.cu[n]; t < rows.cu[n + 1]; ++t) past.push_back(x.data() + t * C);
    for (int t = rows.cu[n]; t < rows.cu[n + 1]; ++t)
      for (int64_t c = 0; c < C; ++c) {
        double magnitude;
        const double want =
            conv_definition(w, past, history + t - rows.cu[n], c, activation == ConvActivation::silu, &magnitude);
        ASSERT_NEAR(to_float(out[t * C + c]), want, bound<E>(want, magnitude))
            << "W " << W << " C " << C << " t " << t << " c " << c;
      }
  }
}

TEST_P(ShortConv, EqualsTheDefinitionForEveryTapCountAndWidthAroundTheVectorsAndTiles) {
  for (int64_t W : {2, 3, 4})
    for (int64_t C : {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 100, 511, 512, 513, 1025}) {
      compare_with_definition<float>(ex, W, C, ConvActivation::silu);
      compare_with_definition<bf16>(ex, W, C, ConvActivation::silu);
      compare_with_definition<float>(ex, W, C, ConvActivation::none);
    }
}

TEST_P(ShortConv, GivesTheSmallVectorOfTheArchitecturePage) {
  ConvWorld<float> w(4, 1);
  for (int j = 0; j < 4; ++j) w.weight[j] = 0.1f * static_cast<float>(j + 1);
  Guarded<float> x({5, 1});
  for (int t = 0; t < 5; ++t) x[t] = static_cast<float>(t + 1);
  const double plain[] = {0.4, 1.1, 2.0, 3.0, 4.0};
  const double silu[] = {0.239475064, 0.825286116, 1.761594156, 2.857722380, 3.928055160};
  ConvRows rows;
  rows.prefill(5, 1, true);
  const Guarded<float> y = w.run(ex, x, rows, ConvActivation::none), z = w.run(ex, x, rows);
  for (int t = 0; t < 5; ++t) {
    EXPECT_NEAR(y[t], plain[t], 1e-6);
    EXPECT_NEAR(z[t], silu[t], 1e-6);
  }
}

TEST_P(ShortConv, SplitOutputsHoldTheBitsOfTheMergedOneAndTheStateIsTheSame) {
  for (int64_t P : {1, 5, 16, 100, 520}) {
    ConvWorld<bf16> w(4, 3 * P, 2);
    fill_normal(w.state, w.rng);
    const Guarded<bf16> before = w.state;
    ConvRows rows(2);
    rows.prefill(6, 1).prefill(1, 2, true).decode(2, 3, 2).save(0, 4, 5);
    Guarded<bf16> x = w.inputs(rows.tokens() + 2);
    const Guarded<bf16> merged = w.run(ex, x, rows);
    const Guarded<bf16> merged_state = w.state;
    w.state = before;
    const int64_t T = x.shape()[0];
    std::vector<Guarded<bf16>> part(3, Guarded<bf16>({T, P}));
    ShortConvArgs a = w.args(x.view(), {}, rows);
    for (size_t i = 0; i < 3; ++i) a.split[i] = part[i].view();
    short_conv(ex, a);
    for (int64_t i = 0; i < 3; ++i) {
      EXPECT_TRUE(part[static_cast<size_t>(i)].guards_intact());
      for (int64_t t = 0; t < T; ++t)
        EXPECT_TRUE(
            test::equal_bits(part[static_cast<size_t>(i)].data() + t * P, merged.data() + t * 3 * P + i * P, P));
    }
    EXPECT_TRUE(same_bits(w.state, merged_state));
  }
}

TEST_P(ShortConv, StridedRowsAndSlotsEqualDenseOnesAndTheGapsAreNeitherReadNorWritten) {
  constexpr int64_t C = 21, T = 7, stride = 40, slots = 4;
  ConvWorld<float> w(4, C, 1, slots);
  fill_normal(w.state, w.rng);
  Guarded<float> wide_state({slots, 5, C});
  test::copy_rows(wide_state.data(), 5 * C, w.state.data(), 3 * C, slots, 3 * C);
  ConvRows rows;
  rows.prefill(4, 1).decode(1, 3);
  Guarded<float> x = w.inputs(T);
  const test::Spread<float> wide_x(x, stride), wide_out({T, C}, stride);
  const Guarded<float> out = w.run(ex, x, rows);
  ShortConvArgs a = w.args(wide_x.view(), wide_out.view(), rows);
  a.state = AnyView(wide_state.view()).slice(1, 0, 3);
  short_conv(ex, a);
  EXPECT_TRUE(wide_out.rows_equal(out));
  EXPECT_TRUE(wide_out.gaps_intact());
  for (int64_t s = 0; s < slots; ++s) {
    EXPECT_TRUE(test::equal_bits<float>(&wide_state[s * 5 * C], w.window(s, 0), 3 * C));
    EXPECT_TRUE(wide_state.is_poison((s * 5 + 3) * C, 2 * C));
  }
}

TEST_P(ShortConv, RowsThatNobodyOwnsAreZeroAndTheirLeftoversHarmNobody) {
  ConvWorld<float> w(4, 19, 1);
  for (int64_t i = 2 * w.R * w.C; i < 3 * w.R * w.C; ++i) w.state[i] = 1;  // slot 2 is live, all others stay NaN
  const Guarded<float> before = w.state;
  ConvRows rows;
  rows.decode(1, 2).decode(1, -1).decode(0, -1);
  Guarded<float> x({8, 19});  // rows 1..7 stay NaN
  for (int64_t c = 0; c < 19; ++c) x[c] = 2;
  const Guarded<float> out = w.run(ex, x, rows);
  for (int64_t c = 0; c < 19; ++c) EXPECT_TRUE(std::isfinite(out[c]));
  for (int64_t i = 19; i < out.size(); ++i) EXPECT_EQ(std::bit_cast<uint32_t>(out[i]), 0u) << i;
  for (int64_t slot : {0, 1, 3, 4, 5}) EXPECT_TRUE(w.slot_untouched(slot, before)) << slot;
}

TEST_P(ShortConv, EmptySequencesTouchNothingWhereverTheyStand) {
  const std::vector<std::vector<int>> packs = {{0}, {0, 5}, {5, 0}, {5, 0, 4}, {0, 0, 0}, {}};
  for (const auto& lens : packs)
    for (bool fresh : {false, true}) {
      ConvWorld<bf16> w(4, 33);
      fill_normal(w.state, w.rng);
      const Guarded<bf16> before = w.state;
      ConvRows rows;
      for (size_t n = 0; n < lens.size(); ++n) rows.prefill(lens[n], static_cast<int>(n) + 1, fresh);
      Guarded<bf16> x = w.inputs(rows.tokens());
      w.run(ex, x, rows);
      for (int64_t slot = 0; slot < 6; ++slot) {
        const bool written =
            slot >= 1 && slot <= static_cast<int64_t>(lens.size()) && lens[static_cast<size_t>(slot - 1)] > 0;
        EXPECT_NE(w.slot_untouched(slot, before), written) << "slot " << slot;
      }
    }
}

TEST_P(ShortConv, BitsOfASequenceDependNeitherOnItsCompanyNorOnTheThreads) {
  constexpr int64_t C = 1100;
  ConvWorld<bf16> w(4, C, 3, 8);
  fill_normal(w.state, w.rng);
  const Guarded<bf16> before = w.state;
  ConvRows all(3), alone(3);
  all.prefill(9, 1).prefill(4, 2, true).decode(3, 3, 2).decode(1, 4, 3);
  alone.decode(3, 3, 2);
  Guarded<bf16> x = w.inputs(all.tokens()), x3 = test::rows_of(x, 13, 3);
  const Guarded<bf16> together = w.run(ex, x, all);
  const Guarded<bf16> state = w.state;
  for (int threads : {1, 3}) {
    TestExec other(threads);
    force(other);
    w.state = before;
    EXPECT_TRUE(same_bits(w.run(other, x, all), together)) << threads << " threads";
    EXPECT_TRUE(same_bits(w.state, state));
  }
  w.state = before;
  const Guarded<bf16> single = w.run(ex, x3, alone);
  EXPECT_TRUE(test::equal_bits(single.data(), together.data() + 13 * C, 3 * C));
  EXPECT_TRUE(w.slot_untouched(3, state));
}

TEST_P(ShortConv, NaNReachesOnlyTheTokensUnderItsTapsInItsChannel) {
  ConvWorld<float> w(3, 20);
  ConvRows rows;
  rows.prefill(8, 1, true).prefill(2, 2, true);
  Guarded<float> x = w.inputs(10);
  x[5 * 20 + 17] = NAN;
  const Guarded<float> out = w.run(ex, x, rows);
  for (int64_t t = 0; t < 10; ++t)
    for (int64_t c = 0; c < 20; ++c)
      EXPECT_EQ(std::isnan(out[t * 20 + c]), c == 17 && t >= 5 && t <= 7) << t << ", " << c;
}

TEST_P(ShortConv, OffsetsPastTwoToThe32ndElementAreExact) {
  constexpr int64_t C = 5, row = int64_t{1} << 30, slot = int64_t{3} << 30;
  ConvWorld<bf16> w(4, C, 1, 3);
  fill_normal(w.state, w.rng);
  ConvRows rows;
  rows.prefill(5, 2);
  Guarded<bf16> x = w.inputs(5);
  const test::Far<bf16> far_x(x, row);
  test::Sparse<bf16> far_state(3 * slot);
  test::copy_rows<bf16>(far_state.data() + 2 * slot, 0, w.window(2, 0), 0, 1, 3 * C);
  Guarded<bf16> out({5, C});
  ShortConvArgs a = w.args(far_x.view(), out.view(), rows);
  a.state = AnyView(far_state.data(), DType::bf16, {3, 3, C}, {slot, C, 1});
  short_conv(ex, a);
  EXPECT_TRUE(same_bits(out, w.run(ex, x, rows)));
  EXPECT_TRUE(test::equal_bits<bf16>(far_state.data() + 2 * slot, w.window(2, 0), 3 * C));
}

TEST(ShortConvRefuses, WrongArgumentsByName) {
  TestExec ex;
  ConvWorld<float> w(4, 6, 2);
  ConvRows rows(2);
  rows.prefill(2, 1, true);
  Guarded<float> x = w.inputs(2), out({2, 6}), part({2, 2}), five({5, 6});
  Guarded<bf16> wrong({6, 4, 6});
  const ShortConvArgs good = w.args(x.view(), out.view(), rows);
  auto with = [&](auto change) {
    ShortConvArgs a = good;
    change(a);
    return test::error_of([&] { short_conv(ex, a); });
  };
  EXPECT_EQ(with([](ShortConvArgs&) {}), "no error");
  EXPECT_EQ(with([&](ShortConvArgs& a) { a.weight = five; }),
            "short_conv: weight: shape [5, 6], expected [W, C] with 2 to 4 taps");
  EXPECT_EQ(with([&](ShortConvArgs& a) {
              a.weight.shape = Shape{4, 5};
            }),
            "short_conv: weight: shape [4, 5], expected [4, 6]");
  EXPECT_EQ(with([&](ShortConvArgs& a) { a.x.dtype = DType::f16; }), "short_conv: x: dtype F16, accepted: F32, BF16");
  EXPECT_EQ(with([&](ShortConvArgs& a) { a.x.shape = Shape{12}; }), "short_conv: x: shape [12], expected [T, C]");
  EXPECT_EQ(with([&](ShortConvArgs& a) { a.state = wrong.view(); }), "short_conv: state: dtype BF16, accepted: F32");
  EXPECT_EQ(with([&](ShortConvArgs& a) { a.state = AnyView(w.state.view()).slice(1, 0, 3); }),
            "short_conv: state: 3 rows a slot, expected >= 4 for 4 taps and 2 columns");
  EXPECT_EQ(with([&](ShortConvArgs& a) { a.state.stride[1] = 7; }),
            "short_conv: state: stride 7 between rows of a slot, expected 6");
  EXPECT_EQ(with([&](ShortConvArgs& a) { a.out = {}; }),
            "short_conv: out: expected either the merged output or all three of split");
  EXPECT_EQ(with([&](ShortConvArgs& a) { a.split[1] = part.view(); }),
            "short_conv: out: expected either the merged output or all three of split");
  EXPECT_EQ(with([&](ShortConvArgs& a) {
              a.out = {}, a.split = {part.view(), part.view(), out.view()};
            }),
            "short_conv: split: shape [2, 6], expected [2, 2]");
  EXPECT_EQ(with([&](ShortConvArgs& a) { a.out.data = nullptr; }), "short_conv: out: null pointer for shape [2, 6]");
  EXPECT_EQ(with([&](ShortConvArgs& a) { a.seq.fresh.shape = Shape{2}; }),
            "short_conv: fresh: shape [2], expected [1]");
}

TEST(ShortConvRefuses, OverlapsByNameBeforeAnythingIsWrittenAndTakesColumnsOfOneBuffer) {
  TestExec ex;
  constexpr int64_t T = 2, C = 6;
  ConvWorld<float> w(4, C);
  fill_normal(w.state, w.rng);
  const Guarded<float> before = w.state;
  ConvRows rows;
  rows.prefill(T, 1, true);
  Guarded<float> x = w.inputs(T), out({T, C}), packed({T, 2 * C});
  fill_normal(packed, w.rng);
  auto with = [&](auto change) {
    ShortConvArgs a = w.args(x.view(), out.view(), rows);
    change(a);
    return test::error_of([&] { short_conv(ex, a); });
  };
  const std::string own = ", expected memory of its own";
  const AnyView wide = packed.view();
  const AnyView slot({w.state.data() + w.R * C, DType::f32, {T, C}});
  const auto split = [](ShortConvArgs& a, const AnyView& whole) {
    a.out = {};
    for (int i = 0; i < 3; ++i) a.split[static_cast<size_t>(i)] = whole.columns(i * C / 3, C / 3);
  };
  EXPECT_EQ(with([&](ShortConvArgs& a) { a.out = x.view(); }), "short_conv: out: overlaps x" + own);
  EXPECT_EQ(with([&](ShortConvArgs& a) { a.x = wide.columns(0, C), a.out = wide.columns(C - 1, C); }),
            "short_conv: out: overlaps x" + own);
  EXPECT_EQ(with([&](ShortConvArgs& a) { a.out = slot; }), "short_conv: out: overlaps state" + own);
  EXPECT_EQ(with([&](ShortConvArgs& a) { split(a, x.view()); }), "short_conv: split: overlaps x" + own);
  EXPECT_EQ(with([&](ShortConvArgs& a) { split(a, slot); }), "short_conv: split: overlaps state" + own);
  EXPECT_EQ(with([&](ShortConvArgs& a) {
              split(a, out.view());
              a.split[2] = a.split[0];
            }),
            "short_conv: split: overlaps another part" + own);
  EXPECT_TRUE(out.untouched() && same_bits(w.state, before));
  EXPECT_EQ(with([&](ShortConvArgs& a) { a.x = wide.columns(0, C), a.out = wide.columns(C, C); }), "no error");
}

TEST(ShortConvRefuses, SplitOfAWidthNotDivisibleByThree) {
  TestExec ex;
  ConvWorld<float> w(4, 7);
  ConvRows rows;
  rows.prefill(1, 1, true);
  Guarded<float> x = w.inputs(1), part({1, 2});
  ShortConvArgs a = w.args(x.view(), {}, rows);
  a.split = {part.view(), part.view(), part.view()};
  EXPECT_EQ(test::error_of([&] { short_conv(ex, a); }), "short_conv: split: 7 channels are not divisible by 3");
}

TEST(ShortConvChoice, TakesTheBestRowOfTheProcessor) {
  Options options;
  ShortConvDesc d{.target = {.isa = IsaLevel::amx}, .tokens = 1, .channels = 8, .sequences = 1};
  EXPECT_STREQ(choose("short_conv", short_conv_variants(), d, options).name, "avx512");
  d.target.isa = IsaLevel::avx2;
  EXPECT_STREQ(choose("short_conv", short_conv_variants(), d, options).name, "avx2");
  d.target.isa = IsaLevel::portable;
  EXPECT_STREQ(choose("short_conv", short_conv_variants(), d, options).name, "portable");
}

TEST(ShortConvPlanning, ReadsNoSequencesAndTouchesNothing) {
  TestExec ex;
  ConvWorld<float> w(4, 6);
  ConvRows rows;
  rows.prefill(2, 77);  // no such slot: a plan does not know live numbers
  Guarded<float> x = w.inputs(2), out({2, 6});
  short_conv(ex.planning(), w.args(x.view(), out.view(), rows));
  EXPECT_TRUE(out.untouched() && w.state.untouched());
}

}  // namespace
}  // namespace kdelta
