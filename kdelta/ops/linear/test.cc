#include <gtest/gtest.h>

#include "kdelta/ops/linear/variants.h"
#include "tests/support/op_test.h"

namespace kdelta {
namespace {
using test::Guarded;
using test::TestExec;

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
  EXPECT_THAT(with([&](LinearArgs& a) { a.w.dtype = DType::i8; }), testing::HasSubstr("linear: w: dtype I8, accepted: F32, BF16"));
  EXPECT_EQ(with([&](LinearArgs& a) { a.w = dense_matrix(w.data(), DType::f4_e2m1, 8, 32); }), "linear: w: null scale pointer");
  EXPECT_EQ(with([&](LinearArgs& a) { a.addend = half.view(); }), "linear: addend: dtype BF16, accepted: F32");
  EXPECT_EQ(with([&](LinearArgs& a) { a.addend = narrow.view(); }), "linear: addend: shape [2, 7], expected [2, 8]");
  EXPECT_EQ(with([&](LinearArgs& a) { a.x.stride[1] = 2; }), "linear: x: stride 2 on the last axis, expected 1");
  EXPECT_EQ(with([&](LinearArgs& a) { a.x.dtype = DType::f16; }), "linear: x: dtype F16, accepted: F32, BF16");
  EXPECT_EQ(with([&](LinearArgs& a) { a.x.shape = Shape{64}; }), "linear: x: shape [64], expected [T, K]");
}

}  // namespace
}  // namespace kdelta
