#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>

#include "kdelta/ops/grouped_linear/variants.h"
#include "kdelta/ops/linear/linear.h"
#include "kdelta/ops/linear/test_weights.h"
#include "tests/support/op_test.h"

namespace kdelta {
namespace {

using test::Guarded;
using test::TestExec;
using test::TestWeights;

class GroupedLinear : public test::VariantTest {
 protected:
  bool serves(DType x, DType w) const {
    for (const GroupedLinearVariant& row : grouped_linear_variants())
      if (row.name == GetParam())
        return refusal(
                   row,
                   GroupedLinearDesc{
                       .target = {.isa = detect_isa()}, .x = x, .w = w, .out = x, .P = 1, .E = 1, .K = 32, .N = 1}) ==
               nullptr;
    return false;
  }
};
KDELTA_INSTANTIATE_VARIANTS(GroupedLinear, grouped_linear_variants());

// E experts, tokens with poison in the rows nobody routes to, and a routing.
template <class In>
struct Case {
  Case(DType dtype, const std::vector<int32_t>& counts, int64_t n, int64_t k, int64_t extra_pairs)
      : N(n),
        K(k),
        pairs(std::accumulate(counts.begin(), counts.end(), 0)),
        R(pairs + 3),
        P(pairs + extra_pairs),
        x({R, K}),
        out({P, N}),
        row({P}),
        begin({static_cast<int64_t>(counts.size()) + 1}) {
    test::Rng rng(static_cast<uint64_t>(n * 31 + k));
    fill_normal(x, rng);
    begin[0] = 0;
    for (size_t e = 0; e < counts.size(); ++e) {
      begin[static_cast<int64_t>(e) + 1] = begin[static_cast<int64_t>(e)] + counts[e];
      weights.push_back(std::make_unique<TestWeights>(dtype, N, K, rng()));
      w.push_back(weights.back()->matrix());
    }
    for (int64_t p = 0; p < P; ++p) row[p] = static_cast<int32_t>((p * 7 + 2) % (R - 1));
    for (int64_t i = 0; i < K; ++i) x[(R - 1) * K + i] = from_float<In>(NAN);
    for (int64_t p = pairs; p < P; ++p) row[p] = -1;
  }
  GroupedLinearArgs args() { return {.x = x.view(), .row = row, .expert_begin = begin, .w = w, .out = out.view()}; }

  int64_t N, K, pairs, R, P;
  Guarded<In> x, out;
  Guarded<int32_t> row, begin;
  std::vector<std::unique_ptr<TestWeights>> weights;
  std::vector<Matrix> w;
};

// Every pair against linear() of its own row with its expert's matrix: same kernel, same bits.
template <class In>
void expect_equal_to_linear(const std::string& variant, DType wtype, const std::vector<int32_t>& counts, int64_t N,
                            int64_t K, const MxInput& input = {}) {
  SCOPED_TRACE(str(dtype_name(wtype), " E ", counts.size(), " N ", N, " K ", K));
  Case<In> c(wtype, counts, N, K, 2);
  for (Matrix& w : c.w) w.input = input;
  Guarded<In> alone({1, N});
  for (int threads : {1, 2, 3}) {
    TestExec ex(threads);
    ex.force("grouped_linear", variant);
    ex.force("linear", variant);
    grouped_linear(ex, c.args());
    ASSERT_TRUE(c.out.guards_intact());
    for (size_t e = 0; e < counts.size(); ++e)
      for (int32_t p = c.begin[static_cast<int64_t>(e)]; p < c.begin[static_cast<int64_t>(e) + 1]; ++p) {
        linear(ex, {.x = AnyConstView(c.x.view()).rows(c.row[p], 1), .w = c.w[e], .out = alone.view()});
        ASSERT_EQ(std::memcmp(alone.data(), &c.out[p * N], static_cast<size_t>(N) * sizeof(In)), 0) << "pair " << p;
      }
    for (int64_t i = c.pairs * N; i < c.P * N; ++i)
      ASSERT_EQ(to_float(c.out[i]), 0.0f) << "a pair past the last expert";
  }
}

TEST_P(GroupedLinear, EveryPairHasTheBitsOfLinearWhateverItsCompany) {
  for (DType w : test::kWeightTypes) {
    const std::vector<int32_t> ragged = {0, 1, 17, 0, 2, 33, 5, 0}, decode = {1, 1, 0, 1, 1, 0, 0, 1}, empty = {0, 0};
    for (const auto& counts : {ragged, decode, empty})
      for (int64_t K : {32, 96, 544}) {
        if (serves(DType::f32, w)) expect_equal_to_linear<float>(GetParam(), w, counts, 35, K);
        if (serves(DType::bf16, w)) expect_equal_to_linear<bf16>(GetParam(), w, counts, 35, K);
      }
  }
  if (serves(DType::bf16, DType::bf16)) expect_equal_to_linear<bf16>(GetParam(), DType::bf16, {3, 0, 14}, 129, 65);
}

// Rows that nobody routes to are NaN here, and stay so.
TEST_P(GroupedLinear, InputsThatExpertsTakeQuantisedHaveTheBitsOfLinearToo) {
  for (DType w : {DType::f8_e4m3, DType::f4_e2m1})
    for (MxScaleRule rule : {MxScaleRule::floor, MxScaleRule::rceil}) {
      const MxInput input{DType::f8_e4m3, rule};
      if (serves(DType::f32, w)) expect_equal_to_linear<float>(GetParam(), w, {0, 1, 17, 2}, 35, 96, input);
      if (serves(DType::bf16, w)) expect_equal_to_linear<bf16>(GetParam(), w, {0, 1, 17, 2}, 35, 96, input);
    }
}

TEST_P(GroupedLinear, WithoutRowsPairPUsesTokenP) {
  TestExec ex;
  ex.force("grouped_linear", GetParam());
  Case<bf16> c(DType::bf16, {2, 0, 3}, 18, 64, 0);
  for (int64_t p = 0; p < c.P; ++p) c.row[p] = static_cast<int32_t>(p);
  grouped_linear(ex, c.args());
  Guarded<bf16> out({c.P, c.N});
  GroupedLinearArgs a = c.args();
  a.x = a.x.rows(0, c.P);
  a.row = {};
  a.out = out.view();
  grouped_linear(ex, a);
  EXPECT_TRUE(same_bits(out, c.out));
}

TEST_P(GroupedLinear, NaNStaysWithItsPairAndItsExpertsRow) {
  TestExec ex;
  ex.force("grouped_linear", GetParam());
  Case<bf16> clean(DType::f4_e2m1, {4, 3}, 20, 64, 0), dirty(DType::f4_e2m1, {4, 3}, 20, 64, 0);
  dirty.x[dirty.row[2] * dirty.K + 5] = to_bf16(NAN);
  dirty.weights[1]->scale(7, 1) = 255;
  grouped_linear(ex, clean.args());
  grouped_linear(ex, dirty.args());
  for (int64_t p = 0; p < clean.P; ++p)
    for (int64_t n = 0; n < clean.N; ++n) {
      if (dirty.row[p] == dirty.row[2] || (p >= 4 && n == 7)) {
        EXPECT_TRUE(std::isnan(to_float(dirty.out[p * clean.N + n])));
      } else {
        EXPECT_EQ(dirty.out[p * clean.N + n].bits, clean.out[p * clean.N + n].bits) << p << " " << n;
      }
    }
}

TEST_P(GroupedLinear, EqualsTheDefinition) {
  TestExec ex;
  ex.force("grouped_linear", GetParam());
  Case<bf16> c(DType::f4_e2m1, {5, 0, 1, 20}, 33, 128, 1);
  Guarded<float> out({c.P, c.N});
  GroupedLinearArgs a = c.args();
  a.out = out.view();
  grouped_linear(ex, a);
  for (size_t e = 0; e < c.w.size(); ++e)
    for (int32_t p = c.begin[static_cast<int64_t>(e)]; p < c.begin[static_cast<int64_t>(e) + 1]; ++p)
      for (int64_t n = 0; n < c.N; ++n) {
        const test::Dot dot = test::dot_of(c.w[e], n, c.x.data() + c.row[p] * c.K);
        ASSERT_NEAR(out[p * c.N + n], dot.value, dot.error + std::fabs(dot.value) * 0x1p-23) << p << " " << n;
      }
}

// The only row of the CPU that takes gate and up at once, against its own products one at a time.
TEST(GroupedLinearReference, OfGateAndUpIsTheActivationOfBothProductsRounded) {
  TestExec ex;
  Case<bf16> c(DType::bf16, {5, 0, 2}, 9, 64, 2), ups(DType::bf16, {5, 0, 2}, 9, 64, 2);
  std::rotate(ups.w.begin(), ups.w.begin() + 1, ups.w.end());  // other weights than the gates'
  for (ActivationKind kind : {ActivationKind::swiglu, ActivationKind::situ, ActivationKind::sigmoid_gate}) {
    const auto run = [&](std::span<const Matrix> w, std::span<const Matrix> up, Guarded<bf16>& out) {
      GroupedLinearArgs a = c.args();
      a.w = w, a.up_w = up, a.out = out.view();
      a.activation = kind, a.beta = 1.25f, a.linear_beta = 3;
      ex.force("grouped_linear", "reference");
      grouped_linear(ex, a);
    };
    Guarded<bf16> gate({c.P, c.N}), up({c.P, c.N}), both({c.P, c.N});
    run(c.w, {}, gate);
    run(ups.w, {}, up);
    run(c.w, ups.w, both);
    for (int64_t p = 0; p < c.P; ++p)
      for (int64_t n = 0; n < c.N; ++n) {
        const double g = to_float(gate[p * c.N + n]), u = to_float(up[p * c.N + n]), s = 1 / (1 + std::exp(-g));
        const double want = p >= c.pairs                     ? 0
                            : kind == ActivationKind::swiglu ? g * s * u
                            : kind == ActivationKind::sigmoid_gate
                                ? s * u
                                : 1.25 * std::tanh(g / 1.25) * s * 3 * std::tanh(u / 3);
        ASSERT_EQ(both[p * c.N + n].bits, to_bf16(static_cast<float>(want)).bits) << p << " " << n;
      }
  }
}

TEST(GroupedLinearRefuses, GateAndUpWhereOneProductIsMadeAtATime) {
  TestExec ex;
  Case<bf16> c(DType::bf16, {2, 1}, 16, 64, 0);
  GroupedLinearArgs a = c.args();
  a.up_w = c.w;
  EXPECT_FALSE(grouped_linear_gates(ex, a));
  for (const GroupedLinearVariant& row : grouped_linear_variants()) {
    if (row.needs.device != DeviceKind::cpu || std::string(row.name) == "reference") continue;
    if (machine_refusal(row, target_of(ex)) != nullptr) continue;
    ex.force("grouped_linear", row.name);
    EXPECT_EQ(test::error_of([&] { grouped_linear(ex, a); }),
              str("op grouped_linear: forced variant ", row.name, " refuses: gated: it makes one product at a time"));
  }
  ex.force("grouped_linear", "reference");
  a.up_w = std::span(c.w).first(1);
  EXPECT_EQ(test::error_of([&] { grouped_linear(ex, a); }), "grouped_linear: up_w: 1 experts, expected 2");
  a.up_w = c.w, a.activation = ActivationKind::situ, a.beta = 0;
  EXPECT_EQ(test::error_of([&] { grouped_linear(ex, a); }), "grouped_linear: beta: 0, expected > 0");
  a.beta = 1, a.linear_beta = -1;
  EXPECT_EQ(test::error_of([&] { grouped_linear(ex, a); }), "grouped_linear: linear_beta: -1, expected >= 0");
}

TEST(GroupedLinearRefuses, WrongArgumentsByName) {
  TestExec ex;
  Case<bf16> c(DType::bf16, {2, 0, 3}, 18, 64, 1);
  auto with = [&](auto change) {
    GroupedLinearArgs a = c.args();
    change(a);
    return test::error_of([&] { grouped_linear(ex, a); });
  };
  EXPECT_EQ(with([&](GroupedLinearArgs&) {}), "no error");
  EXPECT_EQ(with([&](GroupedLinearArgs& a) { a.w = {}; }), "grouped_linear: w: no experts");
  EXPECT_EQ(with([&](GroupedLinearArgs& a) { a.w = a.w.first(2); }),
            "grouped_linear: expert_begin: shape [4], expected [3]");
  EXPECT_EQ(with([&](GroupedLinearArgs& a) { a.x = a.x.columns(0, 32); }),
            "grouped_linear: w[0]: shape [18, 64], expected [18, 32]");
  EXPECT_EQ(with([&](GroupedLinearArgs& a) { a.out = a.out.columns(0, 17); }),
            "grouped_linear: out: shape [6, 17], expected [6, 18]");
  EXPECT_EQ(with([&](GroupedLinearArgs& a) { a.row = {}; }), "grouped_linear: x: shape [8, 64], expected [6, 64]");
  c.w[1].rows = 17;
  EXPECT_EQ(with([&](GroupedLinearArgs&) {}), "grouped_linear: w[1]: shape [17, 64], expected [18, 64]");
  c.w[1].rows = 18, c.w[2].dtype = DType::f32;
  EXPECT_EQ(with([&](GroupedLinearArgs&) {}), "grouped_linear: w[2]: dtype F32, accepted: BF16");
  c.w[2].dtype = DType::bf16, c.row[4] = 8;
  EXPECT_EQ(with([&](GroupedLinearArgs&) {}), "grouped_linear: row[4]: 8, expected 0 to 7");
  c.row[4] = -1;
  EXPECT_EQ(with([&](GroupedLinearArgs&) {}), "grouped_linear: row[4]: -1, expected 0 to 7");
  c.row[4] = 0, c.begin[1] = 3;
  EXPECT_EQ(with([&](GroupedLinearArgs&) {}), "grouped_linear: expert_begin[2]: 2, expected >= 3");
  c.begin[1] = 2, c.begin[3] = 7;
  EXPECT_EQ(with([&](GroupedLinearArgs&) {}), "grouped_linear: expert_begin[3]: 7, expected <= 6");
  c.begin[0] = 1;
  EXPECT_EQ(with([&](GroupedLinearArgs&) {}), "grouped_linear: expert_begin[0]: 1, expected 0");
}

// What the CUDA rows take, best first, without a device.
TEST(GroupedLinearChoice, OfCudaRowsGoesByPairsAnExpertLayoutAndExactness) {
  const auto first = [](auto change) -> std::string {
    GroupedLinearDesc d{
        .x = DType::bf16, .w = DType::bf16, .out = DType::bf16, .P = 64, .E = 256, .K = 2304, .N = 1024};
    change(d);
    for (const GroupedLinearVariant& row : grouped_linear_variants())
      if (row.needs.device == DeviceKind::cuda && (row.refuse == nullptr || row.refuse(d) == nullptr)) return row.name;
    return "none";
  };
  EXPECT_EQ(first([](auto&) {}), "cuda_stream");
  EXPECT_EQ(first([](auto& d) { d.P = 16; }), "cuda_pairs");
  EXPECT_EQ(first([](auto& d) { d.P = 17; }), "cuda_stream");
  EXPECT_EQ(first([](auto& d) { d.P = 8, d.gated = true, d.target.device = DeviceKind::cuda; }), "cuda_pairs");
  EXPECT_EQ(first([](auto& d) { d.P = 8, d.exact = true; }), "cuda_stream");
  EXPECT_EQ(first([](auto& d) { d.P = 8, d.w = DType::f4_e2m1; }), "cuda_fp4");
  EXPECT_EQ(first([](auto& d) { d.P = 65536; }), "cuda_gemm");
  EXPECT_EQ(first([](auto& d) { d.P = 8 * 256; }), "cuda_stream");
  EXPECT_EQ(first([](auto& d) { d.P = 8 * 256 + 1; }), "cuda_gemm");
  EXPECT_EQ(first([](auto& d) { d.w = DType::f4_e2m1, d.P = 16 * 256; }), "cuda_fp4");
  EXPECT_EQ(first([](auto& d) { d.w = DType::f4_e2m1, d.scale_words = false; }), "cuda_stream");
  EXPECT_EQ(first([](auto& d) { d.w = DType::f4_e2m1, d.exact = true; }), "cuda_fp4");
  EXPECT_EQ(first([](auto& d) { d.w = DType::f8_e4m3; }), "cuda_stream");
  EXPECT_EQ(first([](auto& d) { d.P = 65536, d.exact = true; }), "cuda_stream");
  EXPECT_EQ(first([](auto& d) { d.P = 65536, d.even = false; }), "cuda_stream");
  EXPECT_EQ(first([](auto& d) { d.P = 65536, d.N = 1000; }), "cuda_stream");
  EXPECT_EQ(first([](auto& d) { d.aligned = false; }), "cuda");
  EXPECT_EQ(first([](auto& d) { d.x = DType::f32; }), "cuda");
  EXPECT_EQ(first([](auto& d) { d.w = DType::f32; }), "cuda");
  EXPECT_EQ(first([](auto& d) { d.K = 100; }), "cuda");
  EXPECT_EQ(first([](auto& d) { d.w = DType::f4_e2m1, d.K = 64; }), "cuda");
  EXPECT_EQ(first([](auto& d) { d.K = 8192; }), "cuda");
  EXPECT_EQ(first([](auto& d) { d.K = 8192, d.P = 65536; }), "cuda_gemm");
}

TEST(GroupedLinearChoice, OfAnExactCallDoesNotDependOnTheNumberOfPairs) {
  for (int64_t K : {96, 1024, 8192})
    for (DType w : {DType::f32, DType::bf16, DType::f4_e2m1}) {
      std::string chosen;
      for (int64_t P : {1, 8, 2048, 2049, 65536, 1 << 20}) {
        const GroupedLinearDesc d{.x = DType::bf16, .w = w, .P = P, .E = 256, .K = K, .N = 1024, .exact = true};
        for (const GroupedLinearVariant& row : grouped_linear_variants()) {
          if (row.needs.device != DeviceKind::cuda || (row.refuse != nullptr && row.refuse(d) != nullptr)) continue;
          EXPECT_TRUE(chosen.empty() || chosen == row.name) << chosen << " and " << row.name << " at P " << P;
          chosen = row.name;
          break;
        }
      }
    }
}

TEST(GroupedLinearPlanning, ReadsNeitherBoundariesNorRows) {
  TestExec ex;
  Exec planning = ex.exec();
  planning.planning = true;
  Case<bf16> c(DType::bf16, {2, 3}, 18, 64, 0);
  for (int64_t e = 0; e <= 2; ++e) c.begin[e] = -5;
  grouped_linear(planning, c.args());
  for (int64_t i = 0; i < c.out.size(); ++i) EXPECT_TRUE(std::isnan(to_float(c.out[i])));
}

}  // namespace
}  // namespace kdelta
