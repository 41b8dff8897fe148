#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>

#include "kdelta/ops/linear/test_weights.h"
#include "kdelta/ops/linear/variants.h"
#include "tests/support/op_test.h"

namespace kdelta {
namespace {

using test::Guarded;
using test::TestExec;
using test::TestWeights;

class Linear : public test::VariantTest {
 protected:
  // False when this variant does not serve the types: it says so and another row does.
  bool serves(DType x, DType w) const {
    for (const LinearVariant& row : linear_variants())
      if (row.name == GetParam())
        return refusal(
                   row,
                   LinearDesc{.target = {.isa = detect_isa()}, .x = x, .w = w, .out = x, .T = 1, .K = 32, .N = 1}) ==
               nullptr;
    return false;
  }
};
KDELTA_INSTANTIATE_VARIANTS(Linear, linear_variants());

template <class In, class Out>
void compare_with_definition(TestExec& ex, DType wtype, int64_t T, int64_t N, int64_t K) {
  SCOPED_TRACE(str(dtype_name(wtype), " T ", T, " N ", N, " K ", K));
  test::Rng rng(static_cast<uint64_t>(T * 1000003 + N * 1009 + K));
  TestWeights w(wtype, N, K, rng());
  Guarded<In> x({T, K});
  Guarded<Out> out({T, N}), addend({T, N});
  fill_normal(x, rng);
  fill_normal(addend, rng);
  linear(ex, {.x = x.view(), .w = w, .addend = addend.view(), .out = out.view()});
  ASSERT_TRUE(out.guards_intact());
  for (int64_t n = 0; n < N; ++n)
    for (int64_t t = 0; t < T; ++t) {
      const test::Dot dot = test::dot_of(w, n, x.data() + t * K);
      const double want = dot.value + to_float(addend[t * N + n]);
      const double rounding = std::fabs(want) * (sizeof(Out) == 2 ? 0x1p-8 : 0x1p-23);
      ASSERT_NEAR(to_float(out[t * N + n]), want, dot.error + rounding) << "t " << t << " n " << n;
    }
}

// One size at a time around every block edge, the others small and awkward.
template <class In, class Out>
void sweep(TestExec& ex, DType w) {
  const bool mx = dense_matrix(nullptr, w, 1, 32).is_mx();
  const std::vector<int64_t> widths =
      mx ? std::vector<int64_t>{32, 64, 96, 128, 160, 480, 512, 544, 992, 1024, 1056, 2080}
         : std::vector<int64_t>{1,  2,  3,  7,   8,   15,  16,  17,  31,  32,   33,   63,   64,
                                65, 96, 97, 100, 127, 129, 511, 512, 513, 1023, 1024, 1025, 2049};
  for (int64_t K : widths) compare_with_definition<In, Out>(ex, w, 3, 19, K);
  for (int64_t N :
       {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 127, 128, 129, 131, 255, 256, 257})
    compare_with_definition<In, Out>(ex, w, 2, N, 64);
  for (int64_t T : {1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 15, 16, 17, 24, 25, 31, 32, 33, 48, 63, 64, 65, 200})
    compare_with_definition<In, Out>(ex, w, T, 37, 96);
}

TEST_P(Linear, EqualsTheDefinitionAtEverySizeAroundTheBlockEdges) {
  TestExec ex;
  ex.force("linear", GetParam());
  for (DType w : test::kWeightTypes) {
    if (serves(DType::f32, w)) sweep<float, float>(ex, w);
    if (serves(DType::bf16, w)) sweep<bf16, bf16>(ex, w), sweep<bf16, float>(ex, w);
    if (serves(DType::f32, w)) compare_with_definition<float, bf16>(ex, w, 5, 33, 96);
  }
}

// All tokens at once against each alone, in a permuted place, with other thread counts and against a slice of the
// weights.
template <class In>
void expect_exact(const std::string& variant, DType wtype, int64_t T, int64_t N, int64_t K) {
  SCOPED_TRACE(str(dtype_name(wtype), " T ", T, " N ", N, " K ", K));
  test::Rng rng(static_cast<uint64_t>(K + T));
  TestWeights w(wtype, N, K, rng());
  Guarded<In> x({T, K}), reversed({T, K}), addend({T, N}), all({T, N}), again({T, N}), alone({1, N});
  fill_normal(x, rng);
  fill_normal(addend, rng);
  for (int64_t t = 0; t < T; ++t)
    std::memcpy(reversed.data() + (T - 1 - t) * K, x.data() + t * K, static_cast<size_t>(K) * sizeof(In));
  const auto row_bytes = static_cast<size_t>(N) * sizeof(In);
  TestExec one(1), two(2), three(3);
  for (TestExec* ex : {&one, &two, &three}) ex->force("linear", variant);
  linear(two, {.x = x.view(), .w = w, .addend = addend.view(), .out = all.view()});
  for (TestExec* ex : {&one, &three}) {
    linear(*ex, {.x = x.view(), .w = w, .addend = addend.view(), .out = again.view()});
    EXPECT_TRUE(same_bits(all, again)) << ex->exec().threads->size() << " threads";
  }
  linear(two, {.x = x.view(), .w = w, .out = all.view()});
  linear(two, {.x = reversed.view(), .w = w, .out = again.view()});
  for (int64_t t = 0; t < T; ++t) {
    EXPECT_EQ(std::memcmp(all.data() + t * N, again.data() + (T - 1 - t) * N, row_bytes), 0)
        << "row " << t << " elsewhere";
    linear(one, {.x = AnyConstView(x.view()).rows(t, 1), .w = w, .out = alone.view()});
    EXPECT_EQ(std::memcmp(all.data() + t * N, alone.data(), row_bytes), 0) << "row " << t << " alone";
  }
  if (N < 12) return;
  Guarded<In> part({T, N - 11});
  linear(two, {.x = x.view(), .w = w.matrix().slice_rows(7, N - 11), .out = part.view()});
  for (int64_t t = 0; t < T; ++t)
    EXPECT_EQ(std::memcmp(all.data() + t * N + 7, part.data() + t * (N - 11), row_bytes - 11 * sizeof(In)), 0)
        << "slice, row " << t;
}

TEST_P(Linear, BitsOfAnOutputDependOnItsTwoRowsAlone) {
  for (DType w : test::kWeightTypes)
    for (int64_t T : {2, 4, 5, 6, 7, 13, 16, 17, 33, 70})
      for (int64_t K : {32, 96, 544, 1600}) {
        if (serves(DType::f32, w)) expect_exact<float>(GetParam(), w, T, 43, K);
        if (serves(DType::bf16, w)) expect_exact<bf16>(GetParam(), w, T, 43, K);
      }
  for (int64_t K : {1, 31, 33, 100, 515})
    if (serves(DType::bf16, DType::bf16)) expect_exact<bf16>(GetParam(), DType::bf16, 18, 150, K);
  // Around the tokens that are packed together, with columns beyond one segment of the sums.
  for (int64_t T : {263, 264, 265, 529, 1055, 1056, 1057, 1100})
    if (serves(DType::bf16, DType::bf16)) expect_exact<bf16>(GetParam(), DType::bf16, T, 3, T % 2 == 0 ? 64 : 1100);
}

TEST_P(Linear, PartsWithInputsOfTheirOwnHaveTheBitsOfCallsOfTheirOwn) {
  TestExec ex;
  ex.force("linear", GetParam());
  for (DType w : {DType::f32, DType::bf16, DType::f8_e4m3}) {
    if (!serves(DType::f32, w)) continue;
    constexpr int64_t T = 5, K = 96;
    test::Rng rng(3);
    TestWeights first(w, 37, K, 1), second(w, 20, K, 2), third(w, 9, K, 4);
    Guarded<float> x({T, K}), own({T, K + 8}), want({T, 37 + 20 + 9}), got({T, 37 + 20 + 9});
    fill_normal(x, rng), fill_normal(own, rng);
    const AnyConstView its = AnyConstView(own.view()).columns(8, K);
    const auto part = [](Guarded<float>& out, int64_t from, int64_t n) { return AnyView(out.view()).columns(from, n); };
    linear(ex, {.x = x.view(), .w = first, .out = part(want, 0, 37)});
    linear(ex, {.x = its, .w = second, .out = part(want, 37, 20)});
    linear(ex, {.x = x.view(), .w = third, .out = part(want, 57, 9)});
    const LinearPart more[] = {{second, part(got, 37, 20), its}, {third, part(got, 57, 9)}};
    linear(ex, {.x = x.view(), .w = first, .out = part(got, 0, 37), .more = more});
    EXPECT_TRUE(same_bits(want, got)) << dtype_name(w);
  }
}

template <class In>
void expect_strides_free(TestExec& ex, DType wtype) {
  constexpr int64_t T = 7, N = 21, K = 64, xs = 91, os = 40, as = 33;
  test::Rng rng(3);
  TestWeights w(wtype, N, K, 5);
  Guarded<In> x({T, K}), addend({T, N}), want({T, N}), wide_x({T, xs}), wide_a({T, as}), wide_out({T, os});
  fill_normal(x, rng);
  fill_normal(addend, rng);
  for (int64_t t = 0; t < T; ++t) {
    for (int64_t k = 0; k < K; ++k) wide_x[t * xs + 3 + k] = x[t * K + k];
    for (int64_t n = 0; n < N; ++n) wide_a[t * as + n] = addend[t * N + n];
  }
  linear(ex, {.x = x.view(), .w = w, .addend = addend.view(), .out = want.view()});
  linear(ex, {.x = AnyConstView(wide_x.view()).columns(3, K),
              .w = w,
              .addend = AnyConstView(wide_a.view()).columns(0, N),
              .out = AnyView(wide_out.view()).columns(5, N)});
  for (int64_t t = 0; t < T; ++t) {
    EXPECT_EQ(std::memcmp(&wide_out[t * os + 5], &want[t * N], N * sizeof(In)), 0);
    for (int64_t n = 0; n < os; ++n) {
      const bool inside = n >= 5 && n < 5 + N;
      EXPECT_TRUE(inside || std::isnan(to_float(wide_out[t * os + n])));
    }
  }
  linear(ex, {.x = x.view(), .w = w, .addend = addend.view(), .out = addend.view()});
  EXPECT_TRUE(same_bits(addend, want)) << "addend may be out";
}

TEST_P(Linear, StridesAreFreeGapsUntouchedAndAddendMayBeOut) {
  TestExec ex;
  ex.force("linear", GetParam());
  for (DType w : test::kWeightTypes) {
    if (serves(DType::f32, w)) expect_strides_free<float>(ex, w);
    if (serves(DType::bf16, w)) expect_strides_free<bf16>(ex, w);
  }
}

template <class In>
void expect_nan_isolated(TestExec& ex, DType wtype) {
  SCOPED_TRACE(dtype_name(wtype));
  constexpr int64_t T = 19, N = 35, K = 96, bad_t = 14, bad_n = 17;
  test::Rng rng(11);
  TestWeights w(wtype, N, K, 6);
  Guarded<In> x({T, K}), clean({T, N}), out({T, N});
  fill_normal(x, rng);
  linear(ex, {.x = x.view(), .w = w, .out = clean.view()});
  x[bad_t * K + 40] = from_float<In>(NAN);
  if (w.matrix().is_mx()) w.scale(bad_n, 1) = 255;
  if (wtype == DType::bf16) w.put(bad_n * K + 40, to_bf16(NAN));
  if (wtype == DType::f32) w.put(bad_n * K + 40, NAN);
  linear(ex, {.x = x.view(), .w = w, .out = out.view()});
  for (int64_t t = 0; t < T; ++t)
    for (int64_t n = 0; n < N; ++n) {
      if (t == bad_t || n == bad_n) {
        ASSERT_TRUE(std::isnan(to_float(out[t * N + n]))) << t << " " << n;
      } else {
        ASSERT_EQ(std::memcmp(&out[t * N + n], &clean[t * N + n], sizeof(In)), 0) << t << " " << n;
      }
    }
}

TEST_P(Linear, NaNInATokenOrAWeightRowStaysThere) {
  TestExec ex;
  ex.force("linear", GetParam());
  for (DType w : test::kWeightTypes) {
    if (serves(DType::f32, w)) expect_nan_isolated<float>(ex, w);
    if (serves(DType::bf16, w)) expect_nan_isolated<bf16>(ex, w);
  }
}

// One token of ones against rows of one repeated weight: out = K * weight exactly, unless fp32 cannot hold it.
template <class In>
void expect_exact_scales(TestExec& ex, DType wtype, const std::vector<uint8_t>& codes) {
  constexpr int64_t N = 256, K = 64;
  for (uint8_t code : codes) {
    TestWeights w(wtype, N, K, 1);
    for (int64_t n = 0; n < N; ++n) {
      for (int64_t b = 0; b < w.matrix().row_bytes; ++b) w.code(n, b) = code;
      for (int64_t b = 0; b < 2; ++b) w.scale(n, b) = static_cast<uint8_t>(n);
    }
    Guarded<In> x({1, K});
    Guarded<float> out({1, N});
    for (int64_t k = 0; k < K; ++k) x[k] = from_float<In>(k % 2 == 0 ? 1.0f : 0.25f);
    linear(ex, {.x = x.view(), .w = w, .out = out.view()});
    for (int64_t n = 0; n < N; ++n) {
      const test::Dot dot = test::dot_of(w, n, x.data());
      if (dot.magnitude > std::numeric_limits<float>::max()) continue;  // partial sums overflow: no order is right
      const auto want = static_cast<float>(dot.value);
      if (std::isnan(want)) {
        ASSERT_TRUE(std::isnan(out[n])) << int{code} << " scale " << n;
      } else {
        ASSERT_EQ(out[n], want) << int{code} << " scale " << n;
      }
    }
  }
}

TEST_P(Linear, EveryScaleCodeIsExactWithSubnormalAndHugeWeights) {
  TestExec ex;
  ex.force("linear", GetParam());
  // Element codes: FP4 pairs (1, 1), (-0, -0), (6, 6), (-0.5, 0.5), (0, -6); FP8: 1, -0, largest, smallest subnormal,
  // NaN.
  const std::vector<uint8_t> fp4 = {0x22, 0x88, 0x77, 0x19, 0xf0}, e4m3 = {0x38, 0x80, 0x7e, 0x01, 0xff},
                             e5m2 = {0x3c, 0x80, 0x7b, 0x01, 0x7e, 0x7c};
  if (serves(DType::f32, DType::f4_e2m1)) {
    expect_exact_scales<float>(ex, DType::f4_e2m1, fp4);
    expect_exact_scales<float>(ex, DType::f8_e4m3, e4m3);
    expect_exact_scales<float>(ex, DType::f8_e5m2, e5m2);
  }
  expect_exact_scales<bf16>(ex, DType::f4_e2m1, fp4);
  expect_exact_scales<bf16>(ex, DType::f8_e4m3, e4m3);
  expect_exact_scales<bf16>(ex, DType::f8_e5m2, e5m2);
}

// Row n holds the byte n of codes at place 7 n of an otherwise zero row, so an output is one product (FP4: two), and
// neighbours of NaN and infinity are seen to be left alone.
TEST_P(Linear, EveryByteOfCodesIsUnpackedToItsOwnColumns) {
  TestExec ex;
  ex.force("linear", GetParam());
  constexpr int64_t N = 256, K = 192;
  for (DType wtype : {DType::f4_e2m1, DType::f8_e4m3, DType::f8_e5m2})
    for (int64_t T : {1, 6, 7}) {
      if (!serves(DType::bf16, wtype)) continue;
      SCOPED_TRACE(str(dtype_name(wtype), " T ", T));
      TestWeights w(wtype, N, K, 1);
      const int64_t bytes = w.matrix().row_bytes, columns = K / bytes;
      std::vector<float> row(K);
      for (int64_t n = 0; n < N; ++n) {
        for (int64_t b = 0; b < bytes; ++b) w.code(n, b) = b == n * 7 % bytes ? static_cast<uint8_t>(n) : 0;
        for (int64_t b = 0; b < K / kMxBlock; ++b) w.scale(n, b) = static_cast<uint8_t>(120 + b);
      }
      Guarded<bf16> x({T, K});
      Guarded<float> out({T, N});
      for (int64_t i = 0; i < T * K; ++i) x[i] = to_bf16(static_cast<float>(1 + i % 251));
      linear(ex, {.x = x.view(), .w = w, .out = out.view()});
      for (int64_t n = 0; n < N; ++n) {
        dequantize_row(w, n, row.data());
        const int64_t k = n * 7 % bytes * columns;
        for (int64_t t = 0; t < T; ++t) {
          float want = row[k] * to_float(x[t * K + k]);
          if (columns == 2) want += row[k + 1] * to_float(x[t * K + k + 1]);
          const float got = out[t * N + n];
          ASSERT_TRUE(got == want || (std::isnan(got) && std::isnan(want))) << n << ": " << got << " for " << want;
        }
      }
    }
}

// The last rows of the last panel take the way of their own that scales out of the usual range have, and nothing behind
// them is read or written.
TEST_P(Linear, ALastRowWithAnExtremeScaleIsComputedAlone) {
  TestExec ex;
  ex.force("linear", GetParam());
  for (DType wtype : {DType::f4_e2m1, DType::f8_e4m3, DType::f8_e5m2})
    for (int64_t T : {1, 9})
      for (int64_t N : {1, 2, 3, 5, 17, 30}) {
        if (!serves(DType::bf16, wtype)) continue;
        constexpr int64_t K = 96;
        SCOPED_TRACE(str(dtype_name(wtype), " T ", T, " N ", N));
        TestWeights w(wtype, N, K, 7);
        w.scale(N - 1, 1) = 1;
        Guarded<bf16> x({T, K});
        Guarded<float> out({T, N});
        test::Rng rng(static_cast<uint64_t>(N));
        fill_normal(x, rng);
        linear(ex, {.x = x.view(), .w = w, .out = out.view()});
        EXPECT_TRUE(out.guards_intact());
        for (int64_t t = 0; t < T; ++t)
          for (int64_t n = 0; n < N; ++n) {
            const test::Dot dot = test::dot_of(w, n, x.data() + t * K);
            ASSERT_NEAR(out[t * N + n], dot.value, dot.error) << "t " << t << " n " << n;
          }
      }
}

TEST_P(Linear, NoTokensOrNoOutputsIsLegal) {
  TestExec ex;
  ex.force("linear", GetParam());
  TestWeights w(DType::bf16, 4, 32, 1);
  Guarded<bf16> none({0, 32}), x({2, 32}), out({0, 4}), no_columns({2, 0});
  linear(ex, {.x = none.view(), .w = w, .out = out.view()});
  linear(ex, {.x = x.view(), .w = w.matrix().slice_rows(0, 0), .out = no_columns.view()});
  EXPECT_TRUE(out.guards_intact() && no_columns.guards_intact());
}

TEST(LinearRefuses, WrongArgumentsByName) {
  TestExec ex;
  Guarded<float> x({2, 32}), out({2, 8}), w({8, 32}), narrow({2, 7});
  Guarded<bf16> half({2, 8});
  const LinearArgs good{.x = x.view(), .w = dense_matrix(w.data(), DType::f32, 8, 32), .out = out.view()};
  auto with = [&](auto change) {
    LinearArgs a = good;
    change(a);
    return test::error_of([&] { linear(ex, a); });
  };
  EXPECT_EQ(with([&](LinearArgs&) {}), "no error");
  EXPECT_EQ(with([&](LinearArgs& a) { a.out = narrow.view(); }), "linear: out: shape [2, 7], expected [2, 8]");
  EXPECT_EQ(with([&](LinearArgs& a) { a.w.cols = 31; }), "linear: w: shape [8, 31], expected [8, 32]");
  EXPECT_EQ(with([&](LinearArgs& a) { a.w.data = nullptr; }), "linear: w: null pointer for shape [8, 32]");
  EXPECT_THAT(with([&](LinearArgs& a) { a.w.dtype = DType::i8; }),
              testing::HasSubstr("linear: w: dtype I8, accepted: F32, BF16"));
  EXPECT_EQ(with([&](LinearArgs& a) { a.w = dense_matrix(w.data(), DType::f4_e2m1, 8, 32); }),
            "linear: w: null scale pointer");
  EXPECT_EQ(with([&](LinearArgs& a) { a.addend = half.view(); }), "linear: addend: dtype BF16, accepted: F32");
  EXPECT_EQ(with([&](LinearArgs& a) { a.addend = narrow.view(); }), "linear: addend: shape [2, 7], expected [2, 8]");
  EXPECT_EQ(with([&](LinearArgs& a) { a.x.stride[1] = 2; }), "linear: x: stride 2 on the last axis, expected 1");
  EXPECT_EQ(with([&](LinearArgs& a) { a.x.dtype = DType::f16; }), "linear: x: dtype F16, accepted: F32, BF16");
  EXPECT_EQ(with([&](LinearArgs& a) { a.x.shape = Shape{64}; }), "linear: x: shape [64], expected [T, K]");
  const LinearPart own[] = {{good.w, out.view(), narrow.view()}};
  EXPECT_EQ(with([&](LinearArgs& a) { a.more = own; }), "linear: more: x: shape [2, 7], expected [2, 32]");
  Guarded<float> odd({2, 33});
  EXPECT_THAT(with([&](LinearArgs& a) {
                a.x = odd.view();
                a.w = dense_matrix(w.data(), DType::f4_e2m1, 8, 33, reinterpret_cast<const uint8_t*>(w.data()));
              }),
              testing::HasSubstr("linear: w: 33 columns of F4, expected a multiple of the scale block 32"));
}

TEST(LinearChoice, DependsOnTypesAndProcessorNeverOnTheNumberOfTokens) {
  const auto rows = linear_variants();
  const Options options;
  for (IsaLevel isa : {IsaLevel::portable, IsaLevel::avx2, IsaLevel::avx512, IsaLevel::avx512_bf16, IsaLevel::amx})
    for (DType x : {DType::f32, DType::bf16})
      for (DType w : test::kWeightTypes) {
        LinearDesc d{.target = {.isa = isa}, .x = x, .w = w, .out = x, .T = 1, .K = 64, .N = 64};
        const std::string one = choose("linear", rows, d, options).name;
        for (int64_t T : {2, 16, 100000}) {
          d.T = T;
          EXPECT_EQ(choose("linear", rows, d, options).name, one);
        }
      }
}

TEST(LinearPlanning, TouchesNothing) {
  TestExec ex;
  Exec planning = ex.exec();
  planning.planning = true;
  Guarded<bf16> x({2, 64}), out({2, 8});
  linear(planning, {.x = x.view(),
                    .w = dense_matrix(x.data(), DType::f4_e2m1, 8, 64, reinterpret_cast<const uint8_t*>(x.data())),
                    .out = out.view()});
  for (int64_t i = 0; i < out.size(); ++i) EXPECT_TRUE(std::isnan(to_float(out[i])));
}

}  // namespace
}  // namespace kdelta
