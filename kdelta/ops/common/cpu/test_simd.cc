// The vector types and elementary functions on which every CPU kernel stands.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <ostream>
#include <vector>

#include "kdelta/ops/common/cpu/test_simd.h"

namespace kdelta::test {

void PrintTo(const SimdProbe& p, std::ostream* out) {
  *out << p.name;
}  // for GoogleTest

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<SimdProbe> runnable_probes() {
  std::vector<SimdProbe> probes;
  for (const SimdProbe& p : {simd_probe_portable(), simd_probe_avx2(), simd_probe_avx512()})
    if (p.isa <= detect_isa()) probes.push_back(p);
  return probes;
}

class Simd : public testing::TestWithParam<SimdProbe> {
 protected:
  const SimdProbe& p = GetParam();
  float one(SimdProbe::Map f, float x) {
    float y;
    f(&x, &y, 1);
    return y;
  }
};
INSTANTIATE_TEST_SUITE_P(Isa, Simd, testing::ValuesIn(runnable_probes()),
                         [](const auto& row) { return row.param.name; });

uint32_t bits(float x) {
  return std::bit_cast<uint32_t>(x);
}

// Distance of y from the exact value in units of the last place of the exact value's float (denormals: of the smallest
// float); 0 within `floor` of it.
double ulp_error(float y, double exact, double floor) {
  const float rounded = static_cast<float>(exact);
  if (std::isnan(exact)) return std::isnan(y) ? 0 : 1e30;
  if (std::isinf(rounded)) return y == rounded ? 0 : 1e30;
  const double distance = std::fabs(static_cast<double>(y) - exact);
  if (distance <= floor) return 0;
  const int exponent = std::max(-126, rounded == 0 ? -126 : std::ilogb(rounded));
  return distance / std::ldexp(1.0, exponent - 23);
}

// The worst error over every `step`-th float of both signs. step is odd, so every exponent and many mantissas are met.
double worst_ulp(SimdProbe::Map f, double (*exact)(double), double floor = 0, uint32_t step = 1499) {
  constexpr size_t kBlock = 4096;
  std::vector<float> x, y(kBlock);
  double worst = 0;
  auto flush = [&] {
    f(x.data(), y.data(), static_cast<int64_t>(x.size()));
    for (size_t i = 0; i < x.size(); ++i) worst = std::max(worst, ulp_error(y[i], exact(x[i]), floor));
    x.clear();
  };
  for (uint64_t u = 0; u <= 0xffffffffu; u += step) {
    x.push_back(std::bit_cast<float>(static_cast<uint32_t>(u)));
    if (x.size() == kBlock) flush();
  }
  flush();
  return worst;
}

double exact_exp(double x) {
  return std::exp(x);
}
double exact_sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}
double exact_silu(double x) {
  return x / (1 + std::exp(-x));
}
double exact_tanh(double x) {
  return std::tanh(x);
}

// Below x = -88.7 e^-x is infinite, and sigmoid and SiLU are 0 where the exact values are at most 3e-39 and 3e-37.
TEST_P(Simd, ExpIsWithinItsErrorOverAllFloats) {
  EXPECT_LE(worst_ulp(p.exp, exact_exp), 1.1);
}
TEST_P(Simd, SigmoidIsWithinItsErrorOverAllFloats) {
  EXPECT_LE(worst_ulp(p.sigmoid, exact_sigmoid, 3e-39), 2.6);
}
TEST_P(Simd, SiluIsWithinItsErrorOverAllFloats) {
  EXPECT_LE(worst_ulp(p.silu, exact_silu, 3e-37), 2.6);
}
TEST_P(Simd, TanhIsWithinItsErrorOverAllFloats) {
  EXPECT_LE(worst_ulp(p.tanh, exact_tanh), 1.6);
}

TEST_P(Simd, TanhIsOddBitForBit) {
  for (float x = 1e-30f; x < 100; x *= 1.0137f) ASSERT_EQ(bits(one(p.tanh, -x)), bits(-one(p.tanh, x))) << x;
}

TEST_P(Simd, ExpMeetsItsEdges) {
  EXPECT_EQ(one(p.exp, 0), 1.0f);
  EXPECT_EQ(one(p.exp, -0.0f), 1.0f);
  EXPECT_EQ(one(p.exp, kInf), kInf);
  EXPECT_EQ(bits(one(p.exp, -kInf)), 0u);
  EXPECT_TRUE(std::isnan(one(p.exp, kNaN)));
  const float last_finite = 88.7228317f;
  EXPECT_TRUE(std::isfinite(one(p.exp, last_finite)));
  EXPECT_EQ(one(p.exp, std::nextafter(last_finite, kInf)), kInf);
  EXPECT_EQ(one(p.exp, 1e38f), kInf);
  EXPECT_GT(one(p.exp, -103.0f), 0.0f) << "denormal results are kept";
  EXPECT_EQ(one(p.exp, -104.0f), 0.0f);
  EXPECT_EQ(one(p.exp, 1e-40f), 1.0f);
}

TEST_P(Simd, SigmoidSiluAndTanhMeetTheirEdges) {
  EXPECT_EQ(one(p.sigmoid, kInf), 1.0f);
  EXPECT_EQ(one(p.sigmoid, -kInf), 0.0f);
  EXPECT_EQ(one(p.sigmoid, 0), 0.5f);
  EXPECT_EQ(one(p.sigmoid, -0.0f), 0.5f);
  EXPECT_EQ(one(p.silu, kInf), kInf);
  EXPECT_TRUE(std::isnan(one(p.silu, -kInf)));
  EXPECT_EQ(one(p.silu, -3e38f), 0.0f);
  EXPECT_EQ(bits(one(p.silu, -0.0f)), bits(-0.0f));
  EXPECT_EQ(one(p.silu, 1e-40f), 5e-41f);
  EXPECT_EQ(one(p.tanh, kInf), 1.0f);
  EXPECT_EQ(one(p.tanh, -kInf), -1.0f);
  EXPECT_EQ(one(p.tanh, 1e-40f), 1e-40f);
  EXPECT_EQ(bits(one(p.tanh, -0.0f)), bits(-0.0f));
  for (auto f : {p.sigmoid, p.silu, p.tanh}) EXPECT_TRUE(std::isnan(one(f, kNaN)));
}

TEST_P(Simd, TanhIsMonotonicWhereItsTwoFormsMeet) {
  float x = 0.624f, last = one(p.tanh, x);
  for (int i = 0; i < 40000; ++i) {
    x = std::nextafter(x, 1.0f);
    const float y = one(p.tanh, x);
    ASSERT_GE(y, last - 1.3e-7f) << x;
    last = y;
  }
}

TEST_P(Simd, ALaneHasTheSameBitsWhereverItStandsAndWhateverStandsBesideIt) {
  for (auto f : {p.exp, p.sigmoid, p.silu, p.tanh})
    for (float x : {-87.5f, -3.25f, -0.1f, 0.624f, 0.626f, 5.0f, 88.0f}) {
      const float alone = one(f, x);
      for (int64_t lane = 0; lane < p.lanes; ++lane) {
        std::vector<float> v(static_cast<size_t>(p.lanes), kNaN), y(v);
        v[static_cast<size_t>(lane)] = x;
        f(v.data(), y.data(), p.lanes);
        EXPECT_EQ(bits(y[static_cast<size_t>(lane)]), bits(alone));
      }
    }
}

// Every upper half, with the lower halves around the tie and at the ends.
TEST_P(Simd, ABf16StoreRoundsEveryUpperHalfAsToBf16Does) {
  const auto L = static_cast<size_t>(p.lanes);
  std::vector<float> x(2 * L);
  std::vector<bf16> y(L), z(2 * L);
  for (uint32_t low : {0u, 1u, 0x7ffeu, 0x7fffu, 0x8000u, 0x8001u, 0xfffeu, 0xffffu})
    for (uint32_t high = 0; high < 65536; high += static_cast<uint32_t>(2 * L)) {
      for (size_t i = 0; i < 2 * L; ++i) x[i] = std::bit_cast<float>((high + static_cast<uint32_t>(i)) << 16 | low);
      p.narrow_pair(x.data(), z.data());
      for (size_t i = 0; i < 2 * L; ++i) ASSERT_EQ(z[i].bits, to_bf16(x[i]).bits) << std::hex << bits(x[i]);
      for (size_t half : {size_t{0}, L}) {
        p.narrow(x.data() + half, y.data());
        for (size_t i = 0; i < L; ++i) ASSERT_EQ(y[i].bits, z[half + i].bits) << std::hex << bits(x[half + i]);
      }
    }
}

TEST_P(Simd, ABf16LoadIsExactForEveryCode) {
  const auto L = static_cast<size_t>(p.lanes);
  std::vector<bf16> x(L);
  std::vector<float> y(L);
  for (uint32_t high = 0; high < 65536; high += static_cast<uint32_t>(L)) {
    for (size_t i = 0; i < L; ++i) x[i].bits = static_cast<uint16_t>(high + i);
    p.widen(x.data(), y.data());
    for (size_t i = 0; i < L; ++i) ASSERT_EQ(bits(y[i]), bits(to_float(x[i])));
  }
}

TEST_P(Simd, PartialLoadsAndStoresTouchExactlyNElements) {
  const auto L = static_cast<size_t>(p.lanes);
  for (size_t n = 1; n <= L; ++n) {
    // Exactly n elements behind each pointer: AddressSanitizer sees one more.
    std::vector<float> x(n), y(L + 1, -1.0f);
    std::vector<bf16> h(n), z(L + 1, to_bf16(-1.0f));
    for (size_t i = 0; i < n; ++i) x[i] = static_cast<float>(i) + 0.5f, h[i] = to_bf16(x[i]);
    const auto count = static_cast<int64_t>(n);
    p.copy_f32(x.data(), y.data(), count);
    for (size_t i = 0; i <= L; ++i) EXPECT_EQ(y[i], i < n ? x[i] : -1.0f);
    std::fill(y.begin(), y.end(), -1.0f);
    p.widen_n(h.data(), y.data(), count);
    for (size_t i = 0; i <= L; ++i) EXPECT_EQ(y[i], i < n ? x[i] : -1.0f);
    p.narrow_n(x.data(), z.data(), count);
    for (size_t i = 0; i <= L; ++i) EXPECT_EQ(to_float(z[i]), i < n ? x[i] : -1.0f);
  }
}

TEST_P(Simd, SumAddsHalvesFirstAndMaxLaneFindsEveryLane) {
  const auto L = static_cast<size_t>(p.lanes);
  std::vector<float> x(L);
  for (size_t i = 0; i < L; ++i) x[i] = 1.0f / static_cast<float>(i + 3);
  std::vector<float> tree = x;  // the documented order: lane i with lane i + half, until one is left
  for (size_t half = L / 2; half >= 1; half /= 2)
    for (size_t i = 0; i < half; ++i) tree[i] += tree[i + half];
  EXPECT_EQ(p.sum(x.data()), tree[0]);
  for (size_t lane = 0; lane < L; ++lane) {
    std::vector<float> v(L, -5.0f);
    v[lane] = -1.0f;
    EXPECT_EQ(p.max_lane(v.data()), -1.0f);
  }
}

TEST_P(Simd, MinAndMaxReturnTheSecondOperandWhenEitherIsNaN) {
  const auto L = static_cast<size_t>(p.lanes);
  auto run = [&](auto f, float a, float b) {
    std::vector<float> x(L, a), y(L, b), z(L);
    f(x.data(), y.data(), z.data());
    return z[L - 1];
  };
  EXPECT_TRUE(std::isnan(run(p.min, 1, kNaN)));
  EXPECT_TRUE(std::isnan(run(p.max, 1, kNaN)));
  EXPECT_EQ(run(p.min, kNaN, 1), 1.0f);
  EXPECT_EQ(run(p.max, kNaN, 1), 1.0f);
  EXPECT_EQ(run(p.min, -2, 1), -2.0f);
  EXPECT_EQ(run(p.max, -2, 1), 1.0f);
}

TEST_P(Simd, SelectTakesTheLastWhenTheComparisonIsFalseOrNaN) {
  const auto L = static_cast<size_t>(p.lanes);
  auto run = [&](float a, float b) {
    std::vector<float> va(L, a), vb(L, b), x(L, 10), y(L, 20), z(L);
    p.select_gt(va.data(), vb.data(), x.data(), y.data(), z.data());
    return z[0];
  };
  EXPECT_EQ(run(2, 1), 10.0f);
  EXPECT_EQ(run(1, 1), 20.0f);
  EXPECT_EQ(run(kNaN, 1), 20.0f);
  EXPECT_EQ(run(1, kNaN), 20.0f);
}

TEST_P(Simd, AllGtIsFalseWhenOneLaneIsNotGreaterOrNaN) {
  const auto L = static_cast<size_t>(p.lanes);
  const std::vector<float> two(L, 2);
  EXPECT_TRUE(p.all_gt(two.data(), std::vector<float>(L, 1).data()));
  for (size_t lane = 0; lane < L; ++lane)
    for (float other : {2.0f, 3.0f, kNaN}) {
      std::vector<float> v(L, 1);
      v[lane] = other;
      EXPECT_FALSE(p.all_gt(two.data(), v.data())) << lane;
    }
}

TEST_P(Simd, RoundIsToNearestEvenAndLeavesLargeNumbersAlone) {
  for (float x : {0.5f, 1.5f, 2.5f, -0.5f, -1.5f, 0.49999997f, 4194303.5f, -4194303.5f, 8388609.0f, 3e38f, -7.7f})
    EXPECT_EQ(one(p.round, x), std::nearbyint(x)) << x;
  EXPECT_EQ(one(p.round, kInf), kInf);
  EXPECT_TRUE(std::isnan(one(p.round, kNaN)));
}

TEST_P(Simd, PowersOfTwoAreExact) {
  const auto L = static_cast<size_t>(p.lanes);
  for (int n = -126; n <= 127; ++n) EXPECT_EQ(one(p.pow2i, static_cast<float>(n)), std::ldexp(1.0f, n)) << n;
  for (int n = -252; n <= 254; ++n)
    for (float m : {1.0f, 1.9999999f, -1.3333334f}) {
      std::vector<float> x(L, m), e(L, static_cast<float>(n)), y(L);
      p.ldexp(x.data(), e.data(), y.data());
      EXPECT_EQ(y[0], std::ldexp(m, n)) << m << " * 2^" << n;
    }
}

TEST_P(Simd, SqrtAndAbsAreExact) {
  for (float x : {0.0f, 1e-40f, 2.0f, 3e38f}) EXPECT_EQ(one(p.sqrt, x), std::sqrt(x));
  EXPECT_EQ(bits(one(p.abs, -0.0f)), 0u);
  EXPECT_EQ(one(p.abs, -kInf), kInf);
}

}  // namespace
}  // namespace kdelta::test
