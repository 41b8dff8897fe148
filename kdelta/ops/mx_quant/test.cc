// The quantiser against tables of the formats' values, which know nothing of exponents and mantissas; test_situ.cc has
// the fused form, test_dequantize.cc the way back.
#include <gtest/gtest.h>

#include <cmath>

#include "kdelta/ops/mx_quant/test_oracle.h"
#include "tests/support/spread.h"

namespace kdelta {
namespace {

using test::Guarded;
using test::kMxFormats;
using test::kMxRules;
using test::MxResult;
using test::oracle_block;
using test::quantised;
using test::TestExec;

class MxQuantize : public test::OpVariantTest {
 protected:
  MxQuantize() : OpVariantTest("mx_quantize") {}
};
KDELTA_INSTANTIATE_VARIANTS(MxQuantize, mx_quantize_variants());

// Every row of x against the table.
template <class T>
void expect_oracle(TestExec& ex, Guarded<T>& x, DType format, MxScaleRule rule) {
  const int64_t N = x.shape()[1];
  const MxResult got = quantised(ex, x, format, rule);
  ASSERT_TRUE(got.codes.guards_intact() && got.scale.guards_intact());
  std::vector<float> row(static_cast<size_t>(N));
  for (int64_t t = 0; t < x.shape()[0]; ++t) {
    for (int64_t c = 0; c < N; ++c) row[static_cast<size_t>(c)] = to_float(x[t * N + c]);
    for (int64_t c = 0; c < N; c += kMxBlock) {
      const int64_t n = std::min<int64_t>(kMxBlock, N - c);
      const test::OracleBlock want = oracle_block({row.data() + c, static_cast<size_t>(n)}, format, rule);
      ASSERT_EQ(got.scale[t * mx_scale_bytes(N) + c / kMxBlock], want.scale)
          << dtype_name(format) << " rule " << static_cast<int>(rule) << " row " << t << " block " << c / kMxBlock;
      for (int64_t i = 0; i < n; ++i)
        ASSERT_EQ(got.code(t, c + i), want.codes[static_cast<size_t>(i)])
            << dtype_name(format) << " rule " << static_cast<int>(rule) << " row " << t << " column " << c + i << ": "
            << row[static_cast<size_t>(c + i)];
    }
  }
}

// Row t holds bf16 value t alone in one place of its block, the other places a partner that sets the scale.
TEST_P(MxQuantize, EveryBf16ValueAtEveryPlaceOfItsBlockGetsTheNearestCode) {
  const bool slow = GetParam() == "reference";
  for (int64_t place = 0; place < kMxBlock; place += slow ? 13 : 1) {
    Guarded<bf16> x({65536, kMxBlock});
    for (int64_t t = 0; t < 65536; ++t)
      for (int64_t c = 0; c < kMxBlock; ++c)
        x[t * kMxBlock + c] = c == place ? bf16{static_cast<uint16_t>(t)} : bf16{0};
    const DType format = kMxFormats[place % 3];
    expect_oracle(ex, x, format, kMxRules[place / 3 % 3]);
  }
}

TEST_P(MxQuantize, EveryBf16ValueBesideALargerOneIsRoundedOnItsScale) {
  for (DType format : kMxFormats)
    for (MxScaleRule rule : kMxRules) {
      Guarded<bf16> x({65536, kMxBlock});
      test::Rng rng(5);
      for (int64_t t = 0; t < 65536; ++t) {
        const auto value = static_cast<uint16_t>(t);
        // At most 20 binades above: below that every format rounds to zero.
        const auto exponent = std::min<uint16_t>(0x7f00, static_cast<uint16_t>((value & 0x7f80) + (rng() % 20 << 7)));
        for (int64_t c = 0; c < kMxBlock; ++c)
          x[t * kMxBlock + c] = {static_cast<uint16_t>(c == t % kMxBlock ? value : exponent | rng() % 128)};
      }
      expect_oracle(ex, x, format, rule);
    }
}

TEST_P(MxQuantize, RandomBlocksOfEverySizeAroundTheBlockEqualTheTable) {
  for (DType format : kMxFormats)
    for (MxScaleRule rule : kMxRules)
      for (int64_t N : {1, 2, 3, 15, 16, 17, 31, 32, 33, 63, 64, 65, 95, 97, 1000, 8191, 8192, 8225, 16400}) {
        test::Rng rng(static_cast<uint64_t>(N));
        Guarded<bf16> half({3, N});
        Guarded<float> single({3, N});
        fill_normal(half, rng, 0.02f);
        fill_normal(single, rng, 300.0f);
        expect_oracle(ex, half, format, rule);
        expect_oracle(ex, single, format, rule);
      }
}

// Block maxima around every power of two and around the place where a rule changes its mind, and elements around every
// midpoint of two codes.
TEST_P(MxQuantize, FloatsNextToEveryDecisionFallOnItsRightSide) {
  for (DType format : kMxFormats)
    for (MxScaleRule rule : kMxRules) {
      const std::vector<double>& values = test::mx_values(format);
      std::vector<float> edges;
      for (int e = -149; e < 128; ++e)
        for (double m : {1.0, 1.5, 1.75, 1.875, 1.9375, 1.96875}) edges.push_back(static_cast<float>(std::ldexp(m, e)));
      const double largest = values.back();
      for (size_t i = 0; i + 1 < values.size(); ++i)
        edges.push_back(
            static_cast<float>((values[i] + values[i + 1]) / 2 / largest * std::ldexp(1, std::ilogb(largest))));
      std::vector<float> x;
      for (float edge : edges)
        for (float near : {std::nextafter(edge, 0.0f), edge, std::nextafter(edge, INFINITY)})
          if (std::isfinite(near)) x.push_back(near);
      Guarded<float> alone({static_cast<int64_t>(x.size()), 3}), scaled({static_cast<int64_t>(x.size()), 3});
      for (size_t i = 0; i < x.size(); ++i)
        for (int64_t c = 0; c < 3; ++c) {
          alone[static_cast<int64_t>(i) * 3 + c] = c == 1 ? -x[i] : 0;
          scaled[static_cast<int64_t>(i) * 3 + c] = c == 1   ? -x[i]
                                                    : c == 0 ? static_cast<float>(std::ldexp(1, std::ilogb(largest)))
                                                             : 0;
        }
      expect_oracle(ex, alone, format, rule);
      expect_oracle(ex, scaled, format, rule);
    }
}

TEST_P(MxQuantize, ABlockWithNanOrInfinityIsScale255AndZeroCodesAndItsNeighboursAreNot) {
  for (DType format : kMxFormats)
    for (float bad : {NAN, -NAN, INFINITY, -INFINITY})
      for (int64_t place : {32, 47, 63}) {
        Guarded<float> x({2, 96});
        for (int64_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 7) - 3.0f;
        const MxResult clean = quantised(ex, x, format, MxScaleRule::even);
        x[place] = bad;
        const MxResult got = quantised(ex, x, format, MxScaleRule::even);
        for (int64_t t = 0; t < 2; ++t)
          for (int64_t c = 0; c < 96; ++c) {
            const bool poisoned = t == 0 && c / 32 == 1;
            EXPECT_EQ(got.code(t, c), poisoned ? 0 : clean.code(t, c));
            EXPECT_EQ(got.scale[t * 3 + c / 32], poisoned ? 255 : clean.scale[t * 3 + c / 32]);
          }
      }
}

TEST_P(MxQuantize, ZerosAreScale0AndKeepTheirSigns) {
  Guarded<bf16> x({1, 40});
  for (int64_t c = 0; c < 40; ++c) x[c] = to_bf16(c % 2 == 0 ? 0.0f : -0.0f);
  const MxResult eight = quantised(ex, x, DType::f8_e4m3, MxScaleRule::rceil);
  const MxResult four = quantised(ex, x, DType::f4_e2m1, MxScaleRule::rceil);
  for (int64_t c = 0; c < 40; ++c) {
    EXPECT_EQ(eight.code(0, c), c % 2 == 0 ? 0 : 0x80);
    EXPECT_EQ(four.code(0, c), c % 2 == 0 ? 0 : 8);
  }
  EXPECT_EQ(eight.scale[0], 0);
  EXPECT_EQ(eight.scale[1], 0);
}

TEST_P(MxQuantize, TheScaleRulesDifferWhereTheyShould) {
  // 460 = 1.797 * 2^8 saturates under floor, and is above 448 but below the midpoint 496 of 480 and 512.
  Guarded<float> x({1, 32});
  for (int64_t c = 0; c < 32; ++c) x[c] = c == 3 ? 460.0f : 1.0f;
  EXPECT_EQ(quantised(ex, x, DType::f8_e4m3, MxScaleRule::floor).scale[0], 127);
  EXPECT_EQ(quantised(ex, x, DType::f8_e4m3, MxScaleRule::floor).code(0, 3), 0x7e);  // 448
  EXPECT_EQ(quantised(ex, x, DType::f8_e4m3, MxScaleRule::rceil).scale[0], 128);
  EXPECT_EQ(quantised(ex, x, DType::f8_e4m3, MxScaleRule::even).scale[0], 127);
  x[3] = 496.0f;
  EXPECT_EQ(quantised(ex, x, DType::f8_e4m3, MxScaleRule::even).scale[0], 128);
}

TEST_P(MxQuantize, OddFp4WidthsLeaveTheLastHalfByteZeroAndAnEvenScaleWidthItsLastByte) {
  Guarded<float> x({2, 33});
  for (int64_t i = 0; i < x.size(); ++i) x[i] = -6;
  Guarded<uint8_t> codes({2, 17}), scale({2, 4});
  EXPECT_THAT(test::error_of([&] {
                mx_quantize(ex,
                            {.format = DType::f4_e2m1, .x = x.view(), .codes = codes.view(), .scale = scale.view()});
              }),
              testing::HasSubstr("mx_quantize: scale: shape [2, 4], expected [2, 2]"));
  Guarded<float> wide({2, 65});
  for (int64_t i = 0; i < wide.size(); ++i) wide[i] = -6;
  Guarded<uint8_t> wide_codes({2, 33});
  mx_quantize(ex, {.format = DType::f4_e2m1, .x = wide.view(), .codes = wide_codes.view(), .scale = scale.view()});
  for (int64_t t = 0; t < 2; ++t) {
    EXPECT_EQ(wide_codes[t * 33 + 31], 0xff);
    EXPECT_EQ(wide_codes[t * 33 + 32], 0x0f);
    for (int64_t b = 0; b < 3; ++b) EXPECT_EQ(scale[t * 4 + b], 127);
    EXPECT_EQ(scale[t * 4 + 3], 0);
  }
  EXPECT_TRUE(wide_codes.guards_intact() && scale.guards_intact());
}

TEST_P(MxQuantize, BytesOfARowDependNeitherOnItsCompanyNorOnTheThreadsNorOnStrides) {
  constexpr int64_t T = 40, N = 8300;
  Guarded<bf16> x({T, N});
  test::Rng rng(11);
  fill_normal(x, rng);
  for (DType format : kMxFormats) {
    const MxResult all = quantised(ex, x, format, MxScaleRule::floor);
    for (int threads : {1, 3}) {
      TestExec other(threads);
      force(other);
      const MxResult again = quantised(other, x, format, MxScaleRule::floor);
      EXPECT_TRUE(same_bits(again.codes, all.codes) && same_bits(again.scale, all.scale));
    }
    const test::Spread<bf16> spread(x, N + 9, 4);
    const test::Spread<uint8_t> codes({T, mx_code_bytes(format, N)}, N + 5, 2), scale({T, mx_scale_bytes(N)}, 300);
    mx_quantize(ex, {.format = format, .x = spread.view(), .codes = codes.view(), .scale = scale.view()});
    EXPECT_TRUE(codes.rows_equal(all.codes) && scale.rows_equal(all.scale));
    EXPECT_TRUE(codes.gaps_intact() && scale.gaps_intact());
  }
}

TEST_P(MxQuantize, RowsBehindTheCountsAreNeitherReadNorWritten) {
  constexpr int64_t T = 9, N = 70;
  Guarded<bf16> x({T, N});
  test::Rng rng(12);
  fill_normal(x, rng);
  const MxResult all = quantised(ex, x, DType::f8_e5m2, MxScaleRule::floor);
  const int64_t counts[] = {2, 0, 4};
  MxResult got(DType::f8_e5m2, T, N);
  MxQuantizeArgs a = got.args(x);
  a.group_counts = View<const int64_t>(counts, {3});
  mx_quantize(ex, a);
  EXPECT_TRUE(test::equal_bits(got.codes.data(), all.codes.data(), 6 * N));
  EXPECT_TRUE(test::equal_bits(got.scale.data(), all.scale.data(), 6 * 3));
  EXPECT_TRUE(got.codes.is_poison(6 * N, 3 * N) && got.scale.is_poison(6 * 3, 3 * 3));
}

TEST_P(MxQuantize, NoRowsAndNoColumnsAreLegal) {
  Guarded<float> none({0, 64}), thin({4, 0});
  quantised(ex, none, DType::f8_e4m3, MxScaleRule::floor);
  quantised(ex, thin, DType::f4_e2m1, MxScaleRule::floor);
}

TEST_P(MxQuantize, OffsetsPastTwoToThe32ndElementAreExact) {
  constexpr int64_t N = 70, row = int64_t{1} << 31;
  Guarded<bf16> x({3, N});
  test::Rng rng(6);
  fill_normal(x, rng);
  const MxResult want = quantised(ex, x, DType::f8_e4m3, MxScaleRule::floor);
  const test::Far<bf16> far(x, row);
  const test::Far<uint8_t> codes({3, N}, row), scale({3, 3}, row);
  mx_quantize(ex, {.x = far.view(), .codes = codes.view(), .scale = scale.view()});
  EXPECT_TRUE(codes.rows_equal(want.codes) && scale.rows_equal(want.scale));
}

TEST(MxQuantizeRefuses, WrongArgumentsByName) {
  TestExec ex;
  Guarded<float> x({2, 64});
  for (int64_t i = 0; i < x.size(); ++i) x[i] = 1;
  MxResult out(DType::f8_e4m3, 2, 64);
  int64_t counts[] = {1, 2};
  auto with = [&](auto change) {
    MxQuantizeArgs a = out.args(x);
    change(a);
    return test::error_of([&] { mx_quantize(ex, a); });
  };
  EXPECT_EQ(with([](MxQuantizeArgs&) {}), "no error");
  EXPECT_EQ(with([](MxQuantizeArgs& a) { a.format = DType::i8; }),
            "mx_quantize: format: dtype I8, accepted: F8_E4M3, F8_E5M2, F4");
  EXPECT_EQ(with([](MxQuantizeArgs& a) { a.x.shape = Shape{64}; }), "mx_quantize: x: shape [64], expected [T, N]");
  EXPECT_EQ(with([](MxQuantizeArgs& a) { a.x.dtype = DType::i32; }), "mx_quantize: x: dtype I32, accepted: F32, BF16");
  EXPECT_EQ(with([](MxQuantizeArgs& a) { a.format = DType::f4_e2m1; }),
            "mx_quantize: codes: shape [2, 64], expected [2, 32]");
  EXPECT_EQ(with([](MxQuantizeArgs& a) { a.codes.stride[1] = 2; }),
            "mx_quantize: codes: stride 2 on the last axis, expected 1");
  EXPECT_EQ(with([](MxQuantizeArgs& a) { a.scale.data = nullptr; }),
            "mx_quantize: scale: null pointer for shape [2, 2]");
  EXPECT_EQ(with([&](MxQuantizeArgs& a) { a.group_counts = View<const int64_t>(counts, {2}); }),
            "mx_quantize: group_counts: count 2 of expert 1 behind 1 rows, expected a sum of at most 2");
  counts[0] = -1;
  EXPECT_EQ(with([&](MxQuantizeArgs& a) { a.group_counts = View<const int64_t>(counts, {2}); }),
            "mx_quantize: group_counts: count -1 of expert 0, expected 0 or more");
  EXPECT_EQ(test::error_of([] { scale_rule_of(2); }), "scale_alg: 2, accepted: 0 (floor), 1 (rceil)");
}

TEST(MxScaleRules, AreTheNumbersOfScaleAlg) {
  EXPECT_EQ(scale_rule_of(0), MxScaleRule::floor);
  EXPECT_EQ(scale_rule_of(1), MxScaleRule::rceil);
}

TEST(MxQuantizeChoice, TakesTheBestRowOfTheProcessor) {
  Options options;
  MxDesc d{.target = {.isa = IsaLevel::amx}, .rows = 1, .width = 8};
  EXPECT_STREQ(choose("mx_quantize", mx_quantize_variants(), d, options).name, "avx512");
  d.target.isa = IsaLevel::avx2;
  EXPECT_STREQ(choose("mx_quantize", mx_quantize_variants(), d, options).name, "avx2");
  d.target.isa = IsaLevel::portable;
  EXPECT_STREQ(choose("mx_dequantize", mx_dequantize_variants(), d, options).name, "portable");
}

TEST(MxQuantizePlanning, TouchesNothing) {
  TestExec ex;
  Guarded<float> x({2, 64});
  MxResult out(DType::f8_e4m3, 2, 64);
  mx_quantize(ex.planning(), out.args(x));
  EXPECT_TRUE(out.codes.untouched() && out.scale.untouched());
}

}  // namespace
}  // namespace kdelta
