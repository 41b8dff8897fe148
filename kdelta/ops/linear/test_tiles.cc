// The AMX kernels on emulated tiles: their indexing, packing, edges and exactness, on any machine with AVX-512 VBMI.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>

#include "kdelta/ops/grouped_linear/variants.h"
#include "kdelta/ops/linear/test_tiles.h"
#include "kdelta/ops/linear/test_weights.h"
#include "kdelta/ops/linear/variants.h"
#include "tests/support/op_test.h"

namespace kdelta {
namespace {

using test::Guarded;
using test::TestExec;
using test::TestWeights;

class Tiles : public testing::Test {
 protected:
  void SetUp() override {
    if (detect_isa() < IsaLevel::avx512_bf16 || !test::tiles_compiled()) GTEST_SKIP() << "no AVX-512 VBMI here";
  }
};

constexpr DType kTileWeights[] = {DType::bf16, DType::f8_e4m3, DType::f8_e5m2, DType::f4_e2m1};

void compare_with_definition(TestExec& ex, DType wtype, int64_t T, int64_t N, int64_t K) {
  SCOPED_TRACE(str(dtype_name(wtype), " T ", T, " N ", N, " K ", K));
  test::Rng rng(static_cast<uint64_t>(T * 1000003 + N * 1009 + K));
  TestWeights w(wtype, N, K, rng());
  Guarded<bf16> x({T, K});
  Guarded<float> out({T, N}), addend({T, N});
  fill_normal(x, rng);
  fill_normal(addend, rng);
  test::linear_emulated(ex, {.x = x.view(), .w = w, .addend = addend.view(), .out = out.view()});
  ASSERT_TRUE(out.guards_intact());
  for (int64_t n = 0; n < N; ++n)
    for (int64_t t = 0; t < T; ++t) {
      const test::Dot dot = test::dot_of(w, n, x.data() + t * K);
      const double want = dot.value + static_cast<double>(addend[t * N + n]);
      ASSERT_NEAR(static_cast<double>(out[t * N + n]), want, dot.error + std::fabs(want) * 0x1p-23)
          << "t " << t << " n " << n;
    }
}

TEST_F(Tiles, EqualTheDefinitionAtEverySizeAroundTheTileEdges) {
  TestExec ex;
  for (DType w : kTileWeights) {
    for (int64_t K : {32, 64, 96, 480, 512, 544, 1056}) compare_with_definition(ex, w, 3, 19, K);
    for (int64_t N : {1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 150}) {
      compare_with_definition(ex, w, 2, N, 64);
      compare_with_definition(ex, w, 35, N, 64);
    }
    for (int64_t T : {1, 2, 15, 16, 17, 31, 32, 33, 47, 48, 49, 511, 512, 513, 528, 529, 1023, 1024, 1025})
      compare_with_definition(ex, w, T, 37, 96);
  }
  for (int64_t K : {1, 2, 31, 33, 63, 65, 100, 511, 513, 1025})
    for (int64_t T : {1, 2, 33}) compare_with_definition(ex, DType::bf16, T, 35, K);
}

TEST_F(Tiles, BitsOfAnOutputDependOnItsTwoRowsAlone) {
  for (DType wtype : kTileWeights)
    for (int64_t T : {2, 15, 17, 40, 1030}) {
      const int64_t N = T > 1000 ? 5 : 43, K = 608;
      SCOPED_TRACE(str(dtype_name(wtype), " T ", T));
      test::Rng rng(static_cast<uint64_t>(T));
      TestWeights w(wtype, N, K, rng());
      if (w.matrix().is_mx()) w.scale(1, 2) = 0;  // one row takes the exact path
      Guarded<bf16> x({T, K}), all({T, N}), again({T, N}), alone({1, N});
      fill_normal(x, rng);
      TestExec one(1), three(3);
      test::linear_emulated(one, {.x = x.view(), .w = w, .out = all.view()});
      test::linear_emulated(three, {.x = x.view(), .w = w, .out = again.view()});
      EXPECT_TRUE(same_bits(all, again));
      for (int64_t t = 0; t<T; t += T> 1000 ? 103 : 1) {
        test::linear_emulated(one, {.x = AnyConstView(x.view()).rows(t, 1), .w = w, .out = alone.view()});
        EXPECT_EQ(std::memcmp(all.data() + t * N, alone.data(), static_cast<size_t>(N) * 2), 0) << "row " << t;
      }
    }
}

TEST_F(Tiles, EveryScaleCodeIsExact) {
  TestExec ex(1);
  constexpr int64_t N = 256, K = 64;
  for (int64_t T : {1, 20})
    for (int code : {0x22, 0x77, 0x19, 0xf0}) {
      TestWeights w(DType::f4_e2m1, N, K, 1);
      for (int64_t i = 0; i < N * K / 2; ++i) w.code(0, i) = static_cast<uint8_t>(code);
      for (int64_t i = 0; i < 2 * N; ++i) w.scale(0, i) = static_cast<uint8_t>(i / 2);
      Guarded<bf16> x({T, K});
      Guarded<float> out({T, N});
      for (int64_t i = 0; i < T * K; ++i) x[i] = to_bf16(i % 2 == 0 ? 1.0f : 0.25f);
      test::linear_emulated(ex, {.x = x.view(), .w = w, .out = out.view()});
      for (int64_t n = 0; n < N; ++n) {
        const test::Dot dot = test::dot_of(w, n, x.data());
        const float got = out[(T - 1) * N + n];
        EXPECT_TRUE(dot.magnitude > std::numeric_limits<float>::max() || got == static_cast<float>(dot.value) ||
                    (std::isnan(got) && std::isnan(dot.value)))
            << "code " << code << " scale " << n << ": " << got << " for " << dot.value;
      }
    }
}

TEST_F(Tiles, GroupedPairsHaveTheBitsOfLinear) {
  constexpr int64_t N = 35, K = 96;
  const std::vector<int32_t> counts = {0, 1, 17, 0, 1100, 16, 2};
  std::vector<std::unique_ptr<TestWeights>> weights;
  std::vector<Matrix> w;
  Guarded<int32_t> begin({8});
  begin[0] = 0;
  for (size_t e = 0; e < counts.size(); ++e) {
    weights.push_back(std::make_unique<TestWeights>(DType::f4_e2m1, N, K, e));
    w.push_back(*weights.back());
    begin[static_cast<int64_t>(e) + 1] = begin[static_cast<int64_t>(e)] + counts[e];
  }
  const int64_t P = begin[7], R = 50;
  Guarded<int32_t> row({P});
  for (int64_t p = 0; p < P; ++p) row[p] = static_cast<int32_t>(p * 13 % R);
  Guarded<bf16> x({R, K}), out({P, N}), alone({1, N});
  test::Rng rng(9);
  fill_normal(x, rng);
  TestExec ex(2);
  test::grouped_linear_emulated(ex, {.x = x.view(), .row = row, .expert_begin = begin, .w = w, .out = out.view()});
  EXPECT_TRUE(out.guards_intact());
  for (size_t e = 0; e < counts.size(); ++e)
    for (int64_t p = begin[static_cast<int64_t>(e)];
         p<begin[static_cast<int64_t>(e) + 1]; p += counts[e]> 100 ? 37 : 1) {
      test::linear_emulated(ex, {.x = AnyConstView(x.view()).rows(row[p], 1), .w = w[e], .out = alone.view()});
      EXPECT_EQ(std::memcmp(alone.data(), out.data() + p * N, N * 2), 0) << "pair " << p;
    }
}

}  // namespace
}  // namespace kdelta
