#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kdelta/ops/norm/variants.h"
#include "tests/support/op_test.h"
#include "tests/support/spread.h"

namespace kdelta {
namespace {

using test::Guarded;
using test::Spread;
using test::TestExec;

class Norm : public test::OpVariantTest {
 protected:
  Norm() : OpVariantTest("norm") {}
};
KDELTA_INSTANTIATE_VARIANTS(Norm, norm_variants());

// Half an ulp of the output's rounding plus the fp32 arithmetic in front of it.
double bound(DType out) {
  return out == DType::bf16 ? 0x1p-8 + 1e-6 : 1e-6;
}

template <class In, class Out>
void compare_with_definition(TestExec& ex, int64_t T, int64_t D) {
  test::Rng rng(static_cast<uint64_t>(T * 1000 + D));
  Guarded<In> x({T, D});
  Guarded<float> weight({D});
  Guarded<Out> out({T, D});
  fill_normal(x, rng, 2.0f, 0.3f);
  fill_normal(weight, rng, 0.5f, 1.0f);
  norm(ex, {.x = x.view(), .weight = weight, .out = out.view(), .eps = 1e-5f});
  EXPECT_TRUE(out.guards_intact());
  for (int64_t t = 0; t < T; ++t) {
    double sum = 0;
    for (int64_t d = 0; d < D; ++d) sum += std::pow(to_float(x[t * D + d]), 2.0);
    const double scale = 1 / std::sqrt(sum / static_cast<double>(D) + 1e-5);
    for (int64_t d = 0; d < D; ++d) {
      const double want = scale * to_float(x[t * D + d]) * weight[d];
      ASSERT_NEAR(to_float(out[t * D + d]), want, bound(DTypeOf<Out>::value) * std::fabs(want) + 1e-12)
          << "row " << t << " column " << d << " of " << T << "x" << D;
    }
  }
}

TEST_P(Norm, EqualsTheDefinitionAtEverySizeAroundTheVectorWidths) {
  for (int64_t D : {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 512, 1000, 7168})
    for (int64_t T : {1, 3, 17}) {
      compare_with_definition<float, float>(ex, T, D);
      compare_with_definition<bf16, bf16>(ex, T, D);
      compare_with_definition<bf16, float>(ex, T, D);
      compare_with_definition<float, bf16>(ex, T, D);
    }
}

TEST_P(Norm, BitsOfARowDoNotDependOnItsCompany) {
  test::Rng rng(7);
  constexpr int64_t T = 70, D = 257;
  Guarded<bf16> x({T, D}), all({T, D}), alone({1, D});
  Guarded<float> weight({D});
  fill_normal(x, rng);
  fill_normal(weight, rng);
  norm(ex, {.x = x.view(), .weight = weight, .out = all.view(), .eps = 1e-5f});
  for (int64_t t : {int64_t{0}, int64_t{31}, T - 1}) {
    norm(ex, {.x = AnyConstView(x.view()).rows(t, 1), .weight = weight, .out = alone.view(), .eps = 1e-5f});
    EXPECT_TRUE(test::equal_bits(alone.data(), all.data() + t * D, D)) << "row " << t;
  }
}

TEST_P(Norm, NaNStaysInItsRow) {
  Guarded<float> x({3, 20}), weight({20}), out({3, 20});
  test::Rng rng(1);
  fill_normal(x, rng);
  fill_normal(weight, rng);
  x[20 + 4] = NAN;
  norm(ex, {.x = x.view(), .weight = weight, .out = out.view(), .eps = 1e-5f});
  for (int64_t d = 0; d < 20; ++d) {
    EXPECT_TRUE(std::isfinite(out[d]));
    EXPECT_TRUE(std::isnan(out[20 + d]));
    EXPECT_TRUE(std::isfinite(out[40 + d]));
  }
}

TEST_P(Norm, StridedRowsEqualDenseOnesAndTheGapIsNeitherReadNorWritten) {
  constexpr int64_t T = 5, D = 40, stride = 57;
  test::Rng rng(3);
  Guarded<float> dense({T, D}), weight({D}), want({T, D});
  fill_normal(dense, rng);
  fill_normal(weight, rng);
  const Spread<float> in(dense, stride), out({T, D}, stride);
  norm(ex, {.x = dense.view(), .weight = weight, .out = want.view(), .eps = 1e-6f});
  norm(ex, {.x = in.view(), .weight = weight, .out = out.view(), .eps = 1e-6f});
  EXPECT_TRUE(out.rows_equal(want));
  EXPECT_TRUE(out.gaps_intact());
}

TEST_P(Norm, InPlaceEqualsOutOfPlace) {
  test::Rng rng(4);
  Guarded<bf16> x({4, 100}), out({4, 100});
  Guarded<float> weight({100});
  fill_normal(x, rng);
  fill_normal(weight, rng);
  norm(ex, {.x = x.view(), .weight = weight, .out = out.view(), .eps = 1e-5f});
  norm(ex, {.x = x.view(), .weight = weight, .out = x.view(), .eps = 1e-5f});
  EXPECT_TRUE(same_bits(x, out));
}

TEST_P(Norm, EpsilonIsTheCallersAndSitsInsideTheRoot) {
  Guarded<float> x({1, 8}), weight({8}), out({1, 8});
  for (int64_t d = 0; d < 8; ++d) x[d] = 1e-3f, weight[d] = 1;
  norm(ex, {.x = x.view(), .weight = weight, .out = out.view(), .eps = 1e-6f});
  EXPECT_NEAR(out[0], 1 / std::sqrt(2.0), 1e-6);
  norm(ex, {.x = x.view(), .weight = weight, .out = out.view(), .eps = 1e-5f});
  EXPECT_NEAR(out[0], 1 / std::sqrt(11.0), 1e-6);
}

TEST_P(Norm, NoRowsIsLegal) {
  Guarded<float> x({0, 8}), weight({8}), out({0, 8});
  norm(ex, {.x = x.view(), .weight = weight, .out = out.view(), .eps = 1e-6f});
  EXPECT_TRUE(out.guards_intact());
}

TEST(NormRefuses, WrongArgumentsByName) {
  TestExec ex;
  Guarded<float> x({2, 8}), weight({8}), short_weight({7}), out({2, 8});
  const NormArgs good{.x = x.view(), .weight = weight, .out = out.view(), .eps = 1e-5f};
  auto with = [&](auto change) {
    NormArgs a = good;
    change(a);
    return test::error_of([&] { norm(ex, a); });
  };
  EXPECT_EQ(with([&](NormArgs& a) { a.weight = short_weight; }), "norm: weight: shape [7], expected [8]");
  EXPECT_EQ(with([&](NormArgs& a) { a.eps = -1; }), "norm: eps: -1, expected >= 0");
  EXPECT_THAT(with([&](NormArgs& a) { a.eps = NAN; }), testing::HasSubstr("norm: eps"));
  EXPECT_EQ(with([&](NormArgs& a) { a.x.data = nullptr; }), "norm: x: null pointer for shape [2, 8]");
  EXPECT_EQ(with([&](NormArgs& a) { a.x.dtype = DType::i32; }), "norm: x: dtype I32, accepted: F32, BF16");
  EXPECT_EQ(with([&](NormArgs& a) { a.out.stride[1] = 2; }), "norm: out: stride 2 on the last axis, expected 1");
  EXPECT_EQ(with([&](NormArgs& a) { a.x.shape = Shape{16}; }), "norm: x: shape [16], expected [T, D]");
}

TEST(NormChoice, TakesTheFirstRowThatTheProcessorHasAndObeysForce) {
  const auto rows = norm_variants();
  Options options;
  NormDesc d{.rows = 1, .width = 8};
  for (const IsaLevel most : {IsaLevel::amx, IsaLevel::avx2, IsaLevel::portable}) {
    d.target.isa = most;
    const auto first = std::ranges::find_if(
        rows, [&](const auto& row) { return row.needs.device == DeviceKind::cpu && row.needs.isa <= most; });
    EXPECT_STREQ(choose("norm", rows, d, options).name, first->name);
  }
  const auto beyond = std::ranges::find_if(rows, [](const auto& row) { return row.needs.isa > IsaLevel::portable; });
  options.parse_force(str("norm:", beyond->name));
  EXPECT_THAT(test::error_of([&] { choose("norm", rows, d, options); }),
              testing::HasSubstr(str("forced variant ", beyond->name, " refuses")));
  std::string known;
  for (const auto& row : rows) known += str(known.empty() ? "" : ", ", row.name);
  options.parse_force("norm:nonesuch");
  EXPECT_THAT(test::error_of([&] { choose("norm", rows, d, options); }), testing::HasSubstr("known: " + known));
}

TEST(NormChoice, OnACudaDeviceTakesACudaRowAndABuildWithoutCudaListsItWithTheReason) {
  const auto rows = norm_variants();
  const NormDesc on_cpu{.target = {.isa = IsaLevel::amx}, .rows = 1, .width = 8};
  NormDesc d{
      .target = {.device = DeviceKind::cuda, .cuda = CudaLevel::sm90a, .multiprocessors = 132}, .rows = 1, .width = 8};
  EXPECT_THAT(explain("norm", rows, d), testing::HasSubstr("avx512: it runs on the CPU\n"));
  Options options;
  if (!kCudaBuild) {
    EXPECT_THAT(explain("norm", rows, d), testing::HasSubstr("cuda: this build has no CUDA\n"));
    EXPECT_THAT(explain("norm", rows, on_cpu), testing::HasSubstr("cuda: this build has no CUDA\n"));
    EXPECT_THAT(test::error_of([&] { choose("norm", rows, d, options); }),
                testing::HasSubstr("no variant serves this call"));
    return;
  }
  EXPECT_THAT(explain("norm", rows, on_cpu), testing::HasSubstr("cuda: it runs on a CUDA device\n"));
  EXPECT_STREQ(choose("norm", rows, d, options).name, "cuda");
  d.target.cuda = CudaLevel::none;
  EXPECT_THAT(explain("norm", rows, d), testing::HasSubstr("cuda: the CUDA device lacks the instructions\n"));
}

TEST(NormPlanning, TouchesNothing) {
  TestExec ex;
  Guarded<float> x({2, 8}), weight({8}), out({2, 8});
  norm(ex.planning(), {.x = x.view(), .weight = weight, .out = out.view(), .eps = 1e-5f});
  EXPECT_TRUE(out.untouched());
}

}  // namespace
}  // namespace kdelta
