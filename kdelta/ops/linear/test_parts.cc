// Several projections of one x in one call.
#include <gtest/gtest.h>

#include <memory>

#include "kdelta/ops/linear/test_weights.h"
#include "kdelta/ops/linear/variants.h"
#include "tests/support/op_test.h"

namespace kdelta {
namespace {

using test::Guarded;
using test::TestExec;
using test::TestWeights;

class LinearParts : public test::VariantTest {};
KDELTA_INSTANTIATE_VARIANTS(LinearParts, linear_variants());

bool serves(const std::string& variant, DType x, DType w) {
  for (const LinearVariant& row : linear_variants())
    if (row.name == variant)
      return refusal(row, LinearDesc{.target = {.isa = detect_isa()}, .x = x, .w = w, .out = x}) == nullptr;
  return false;
}

// Parts of odd heights, one of them empty, one with fp32 outputs, against a call for each.
template <class In>
void expect_parts_equal_calls(TestExec& ex, DType wtype, int64_t T, int64_t K) {
  SCOPED_TRACE(str(dtype_name(wtype), " T ", T, " K ", K));
  test::Rng rng(static_cast<uint64_t>(T * 31 + K));
  constexpr int64_t kRows[] = {40, 1, 0, 16, 33, 129};
  Guarded<In> x({T, K}), addend({T, kRows[0]});
  fill_normal(x, rng);
  fill_normal(addend, rng);
  std::vector<std::unique_ptr<TestWeights>> w;
  std::vector<Guarded<In>> together, alone;
  Guarded<float> wide({T, kRows[4]}), wide_alone({T, kRows[4]});
  for (int64_t rows : kRows) {
    w.push_back(std::make_unique<TestWeights>(wtype, rows, K, rng()));
    together.emplace_back(Shape{T, rows});
    alone.emplace_back(Shape{T, rows});
  }
  const auto out = [&](std::vector<Guarded<In>>& buffers, Guarded<float>& f32, size_t i) {
    return i == 4 ? AnyView(f32.view()) : AnyView(buffers[i].view());
  };
  std::vector<LinearPart> more;
  for (size_t i = 1; i < w.size(); ++i) more.push_back({.w = *w[i], .out = out(together, wide, i)});
  linear(ex, {.x = x.view(), .w = *w[0], .addend = addend.view(), .out = together[0].view(), .more = more});
  for (size_t i = 0; i < w.size(); ++i) {
    linear(ex, {.x = x.view(),
                .w = *w[i],
                .addend = i == 0 ? AnyConstView(addend.view()) : AnyConstView(),
                .out = out(alone, wide_alone, i)});
    EXPECT_TRUE(together[i].guards_intact());
    if (i == 4) continue;
    EXPECT_TRUE(same_bits(together[i], alone[i])) << "part " << i;
  }
  EXPECT_TRUE(same_bits(wide, wide_alone) && wide.guards_intact());
}

TEST_P(LinearParts, PartsOfOneCallHaveTheBitsOfACallEach) {
  TestExec one(1), three(3);
  for (TestExec* ex : {&one, &three}) {
    ex->force("linear", GetParam());
    for (DType w : test::kWeightTypes)
      for (int64_t T : {1, 5, 18, 300}) {
        if (serves(GetParam(), DType::f32, w)) expect_parts_equal_calls<float>(*ex, w, T, 96);
        if (serves(GetParam(), DType::bf16, w)) expect_parts_equal_calls<bf16>(*ex, w, T, 96);
      }
    // Tokens beyond one packing, columns beyond one segment of the sums.
    if (serves(GetParam(), DType::bf16, DType::bf16)) expect_parts_equal_calls<bf16>(*ex, DType::bf16, 1060, 1100);
  }
}

TEST(LinearRefuses, WrongPartsByName) {
  TestExec ex;
  Guarded<float> x({2, 32}), out({2, 8}), part({2, 4}), w({8, 32});
  const Matrix matrix = dense_matrix(w.data(), DType::f32, 8, 32);
  const auto with = [&](int parts, auto change) {
    LinearPart p{.w = matrix.slice_rows(0, 4), .out = part.view()};
    change(p);
    const std::vector<LinearPart> more(static_cast<size_t>(parts), p);
    return test::error_of([&] { linear(ex, {.x = x.view(), .w = matrix, .out = out.view(), .more = more}); });
  };
  EXPECT_EQ(with(kMaxLinearParts - 1, [](LinearPart&) {}), "no error");
  EXPECT_EQ(with(kMaxLinearParts, [](LinearPart&) {}), "linear: more: 8 parts, expected fewer than 8");
  EXPECT_EQ(with(1, [](LinearPart& p) { p.w.dtype = DType::bf16; }),
            "linear: more: w: dtype BF16, the first part has F32");
  EXPECT_EQ(with(1, [](LinearPart& p) { p.w.cols = 31; }), "linear: more: w: shape [4, 31], expected [4, 32]");
  EXPECT_EQ(with(1, [](LinearPart& p) { p.w.rows = 3; }), "linear: more: out: shape [2, 4], expected [2, 3]");
  EXPECT_EQ(with(1, [](LinearPart& p) { p.out.dtype = DType::f16; }),
            "linear: more: out: dtype F16, accepted: F32, BF16");
}

}  // namespace
}  // namespace kdelta
