#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>

#include "kdelta/ops/moe_combine/variants.h"
#include "tests/support/op_test.h"
#include "tests/support/spread.h"

namespace kdelta {
namespace {

using test::Guarded;
using test::TestExec;

class MoeCombine : public test::OpVariantTest {
 protected:
  MoeCombine() : OpVariantTest("moe_combine") {}
};
KDELTA_INSTANTIATE_VARIANTS(MoeCombine, moe_combine_variants());

// T tokens whose pairs lie in a shuffled order.
template <class Y, class Out>
struct Call {
  int64_t T, k, D;
  Guarded<Y> y;
  Guarded<int32_t> position;
  Guarded<float> weight;
  Guarded<Y> addend;
  Guarded<Out> out;

  Call(int64_t tokens, int64_t choices, int64_t width)
      : T(tokens), k(choices), D(width), y({T * k, D}), position({T, k}), weight({T, k}), addend({T, D}), out({T, D}) {
    test::Rng rng(static_cast<uint64_t>(T * 100 + D));
    fill_normal(y, rng);
    fill_uniform(weight, rng, 0.0f, 1.0f);
    fill_normal(addend, rng);
    std::iota(position.data(), position.data() + T * k, 0);
    std::shuffle(position.data(), position.data() + T * k, rng);
  }
  MoeCombineArgs args(bool with_addend = true) {
    return {.y = y.view(),
            .position = position,
            .weight = weight,
            .addend = with_addend ? AnyConstView(addend.view()) : AnyConstView{},
            .out = out.view()};
  }
};

template <class Y, class Out>
void expect_definition(const Call<Y, Out>& c, bool with_addend) {
  for (int64_t t = 0; t < c.T; ++t)
    for (int64_t d = 0; d < c.D; ++d) {
      double sum = 0, size = 0;
      for (int64_t i = 0; i < c.k; ++i) {
        const double term =
            static_cast<double>(c.weight[t * c.k + i]) * to_float(c.y[c.position[t * c.k + i] * c.D + d]);
        sum += term;
        size += std::fabs(term);
      }
      if (with_addend) sum += to_float(c.addend[t * c.D + d]), size += std::fabs(to_float(c.addend[t * c.D + d]));
      // k fp32 roundings of partial sums, then the output's own.
      const double bound =
          size * static_cast<double>(c.k + 2) * 0x1p-24 + std::fabs(sum) * (sizeof(Out) == 2 ? 0x1p-8 : 0x1p-24);
      ASSERT_NEAR(to_float(c.out[t * c.D + d]), sum, bound)
          << t << ", " << d << " of " << c.T << "x" << c.k << "x" << c.D;
    }
}

template <class Y, class Out>
void check_sizes(TestExec& ex) {
  for (int64_t D : {1, 3, 4, 5, 8, 15, 16, 17, 127, 128, 129, 511, 512, 513, 1152})
    for (int64_t k : {1, 2, 16})
      for (bool with_addend : {false, true}) {
        Call<Y, Out> c(5, k, D);
        moe_combine(ex, c.args(with_addend));
        expect_definition(c, with_addend);
        EXPECT_TRUE(c.out.guards_intact());
      }
}

TEST_P(MoeCombine, EqualsTheDefinitionAtEverySizeAroundTheVectorWidths) {
  check_sizes<float, float>(ex);
  check_sizes<bf16, bf16>(ex);
  check_sizes<bf16, float>(ex);
  check_sizes<float, bf16>(ex);
}

TEST_P(MoeCombine, TheSumRunsInTheOrderOfTheChoices) {
  if (GetParam() == "reference") GTEST_SKIP() << "fp64 holds 1e8 + 1: there is no order to see";
  Call<float, float> c(1, 3, 70);
  std::iota(c.position.data(), c.position.data() + 3, 0);
  for (int64_t d = 0; d < 70; ++d) c.y[d] = 1e8f, c.y[70 + d] = -1e8f, c.y[140 + d] = 1;
  std::fill_n(c.weight.data(), 3, 1.0f);
  moe_combine(ex, c.args(false));
  for (int64_t d = 0; d < 70; ++d) EXPECT_EQ(c.out[d], 1.0f);
  std::swap(c.position[1], c.position[2]);
  moe_combine(ex, c.args(false));
  for (int64_t d = 0; d < 70; ++d) EXPECT_EQ(c.out[d], 0.0f) << "1e8 + 1 loses the 1";
}

TEST_P(MoeCombine, TheAddendComesAfterTheLastChoice) {
  if (GetParam() == "reference") GTEST_SKIP() << "fp64 holds 1e8 + 1: there is no order to see";
  Call<float, float> c(1, 2, 70);
  std::iota(c.position.data(), c.position.data() + 2, 0);
  std::fill_n(c.weight.data(), 2, 1.0f);
  const auto sum = [&](float first, float second, float addend) {
    for (int64_t d = 0; d < 70; ++d) c.y[d] = first, c.y[70 + d] = second, c.addend[d] = addend;
    moe_combine(ex, c.args());
  };
  sum(1e8f, -1e8f, 1);
  for (int64_t d = 0; d < 70; ++d) EXPECT_EQ(c.out[d], 1.0f) << "added before the second choice the 1 is lost";
  sum(1, 1e8f, -1e8f);
  for (int64_t d = 0; d < 70; ++d) EXPECT_EQ(c.out[d], 0.0f) << "added first the 1 stays";
}

TEST_P(MoeCombine, RowsThatAreNotLiveAreZerosAndReadNothing) {
  Call<float, bf16> c(4, 2, 37);
  for (int64_t i = 2 * 2; i < 4 * 2; ++i) {
    for (int64_t d = 0; d < 37; ++d) c.y[c.position[i] * 37 + d] = NAN;
    c.position[i] = -1;
    c.weight[i] = NAN;
  }
  for (int64_t i = 2 * 37; i < 4 * 37; ++i) c.addend[i] = NAN;
  moe_combine(ex, c.args());
  for (int64_t i = 0; i < 2 * 37; ++i) EXPECT_TRUE(std::isfinite(to_float(c.out[i])));
  for (int64_t i = 2 * 37; i < 4 * 37; ++i) EXPECT_EQ(c.out[i].bits, 0);
}

TEST_P(MoeCombine, AMissingChoiceOfALiveRowContributesNothing) {
  Call<float, float> c(1, 2, 20);
  c.position[0] = -1;
  c.weight[0] = NAN;
  moe_combine(ex, c.args());
  for (int64_t d = 0; d < 20; ++d) EXPECT_NEAR(c.out[d], c.weight[1] * c.y[c.position[1] * 20 + d] + c.addend[d], 1e-6);
}

TEST_P(MoeCombine, NaNStaysInItsRow) {
  Call<bf16, bf16> c(3, 4, 40);
  for (int64_t d = 0; d < 40; ++d) c.y[c.position[5] * 40 + d] = to_bf16(NAN);
  moe_combine(ex, c.args());
  for (int64_t d = 0; d < 40; ++d) {
    EXPECT_TRUE(std::isfinite(to_float(c.out[d])));
    EXPECT_TRUE(std::isnan(to_float(c.out[40 + d])));
    EXPECT_TRUE(std::isfinite(to_float(c.out[80 + d])));
  }
}

TEST_P(MoeCombine, TheAddendMayBeTheOutput) {
  Call<bf16, bf16> c(3, 2, 600);
  moe_combine(ex, c.args());
  Guarded<bf16> want = c.out;
  std::memcpy(c.out.data(), c.addend.data(), sizeof(bf16) * 3 * 600);
  MoeCombineArgs a = c.args();
  a.addend = c.out.view();
  moe_combine(ex, a);
  EXPECT_TRUE(same_bits(c.out, want));
}

TEST_P(MoeCombine, BitsOfARowDoNotDependOnItsCompanyOrTheThreads) {
  TestExec one(1), many(3);
  force(one);
  force(many);
  Call<bf16, float> c(40, 3, 700);
  moe_combine(many, c.args());
  Guarded<float> alone({1, 700});
  for (int64_t t : {0, 17, 39}) {
    MoeCombineArgs a = c.args();
    a.position = View<const int32_t>(&c.position[t * 3], {1, 3});
    a.weight = View<const float>(&c.weight[t * 3], {1, 3});
    a.addend = a.addend.rows(t, 1);
    a.out = alone.view();
    moe_combine(one, a);
    EXPECT_TRUE(test::equal_bits(alone.data(), &c.out[t * 700], 700)) << "row " << t;
  }
}

TEST_P(MoeCombine, StridedRowsEqualDenseOnesAndTheGapIsNeitherReadNorWritten) {
  Call<float, float> c(3, 2, 50);
  moe_combine(ex, c.args());
  const test::Spread<float> y(c.y, 61), out({3, 50}, 61);
  MoeCombineArgs a = c.args();
  a.y = y.view();
  a.out = out.view();
  moe_combine(ex, a);
  EXPECT_TRUE(out.rows_equal(c.out));
  EXPECT_TRUE(out.gaps_intact());
}

TEST_P(MoeCombine, RowsPast32BitsOfElementsAreFound) {
  Call<bf16, float> c(1, 2, 50);
  moe_combine(ex, c.args());
  const Guarded<float> want = c.out;
  constexpr int64_t kStride = (int64_t{1} << 32) + 7;
  const test::Far<bf16> y(c.y, kStride);
  MoeCombineArgs a = c.args();
  a.y = y.view();
  moe_combine(ex, a);
  EXPECT_TRUE(same_bits(c.out, want));
}

TEST_P(MoeCombine, NoRowsIsLegal) {
  Call<float, float> c(0, 2, 8);
  moe_combine(ex, c.args());
}

TEST(MoeCombineRefuses, WrongArgumentsByNameBeforeAnythingIsWritten) {
  TestExec ex;
  Call<float, float> c(2, 2, 8);
  auto with = [&](auto change) {
    MoeCombineArgs a = c.args();
    change(a);
    return test::error_of([&] { moe_combine(ex, a); });
  };
  EXPECT_EQ(with([](MoeCombineArgs& a) { a.y = a.y.columns(0, 7); }), "moe_combine: y: shape [4, 7], expected [4, 8]");
  EXPECT_EQ(with([](MoeCombineArgs& a) {
              a.weight.shape = {2, 1};
            }),
            "moe_combine: weight: shape [2, 1], expected [2, 2]");
  EXPECT_EQ(with([](MoeCombineArgs& a) {
              a.position.shape = {1, 2};
            }),
            "moe_combine: position: shape [1, 2], expected [2, 2]");
  EXPECT_EQ(with([](MoeCombineArgs& a) { a.out.dtype = DType::f16; }),
            "moe_combine: out: dtype F16, accepted: F32, BF16");
  EXPECT_EQ(with([](MoeCombineArgs& a) { a.addend = a.addend.rows(0, 1); }),
            "moe_combine: addend: shape [1, 8], expected [2, 8]");
  c.position[3] = 4;
  EXPECT_EQ(with([](MoeCombineArgs&) {}), "moe_combine: position[1, 1] is 4, expected -1..3");
  c.position[3] = -2;
  EXPECT_EQ(with([](MoeCombineArgs&) {}), "moe_combine: position[1, 1] is -2, expected -1..3");
  EXPECT_TRUE(c.out.untouched());
}

TEST(MoeCombinePlanning, TouchesNothing) {
  TestExec ex;
  Call<float, float> c(2, 2, 8);
  moe_combine(ex.planning(), c.args());
  EXPECT_TRUE(c.out.untouched());
}

}  // namespace
}  // namespace kdelta
