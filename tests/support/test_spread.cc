// The helpers that other tests believe.
#include <gtest/gtest.h>

#include "tests/support/spread.h"

namespace kdelta::test {
namespace {

Guarded<float> numbered(const Shape& shape) {
  Guarded<float> a(shape);
  for (int64_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(i);
  return a;
}

TEST(Spread, HoldsTheRowsOfTheDenseArrayAtItsColumnAndStride) {
  const Guarded<float> dense = numbered({2, 3, 4});
  const Spread<float> s(dense, 9, 2);
  const View<float> v = s.view();
  EXPECT_EQ(v.shape, dense.shape());
  for (int64_t i = 0; i < 2; ++i)
    for (int64_t j = 0; j < 3; ++j)
      for (int64_t k = 0; k < 4; ++k) EXPECT_EQ(*v.at(i, j, k), dense[(i * 3 + j) * 4 + k]);
  EXPECT_EQ(v.at(0, 1) - v.at(0, 0), 9);
  EXPECT_TRUE(s.rows_equal(dense));
  EXPECT_TRUE(s.gaps_intact());
}

TEST(Spread, SeesOneChangedElementInARowAndInEveryGap) {
  const Guarded<float> dense = numbered({2, 3});
  for (int64_t offset = -1; offset <= 10; ++offset) {  // lines of 5, rows at columns 1..3
    const Spread<float> s(dense, 5, 1);
    const int64_t column = (offset + 1) % 5;
    s.view().data[offset] = 77;
    const bool in_row = offset >= 0 && offset < 10 && column >= 1 && column <= 3;
    EXPECT_EQ(s.rows_equal(dense), !in_row) << offset;
    EXPECT_EQ(s.gaps_intact(), in_row) << offset;
  }
}

TEST(Spread, ABornArrayIsUntouchedAndOneWithANumberIsNot) {
  Guarded<bf16> a({3, 4});
  EXPECT_TRUE(a.untouched());
  a[5] = to_bf16(1);
  EXPECT_FALSE(a.untouched());
  EXPECT_TRUE(a.is_poison(0, 5) && a.is_poison(6, 6));
  EXPECT_FALSE(a.is_poison(5, 1));
}

TEST(Far, HoldsItsRowsPastTwoToThe32ndElement) {
  const Guarded<float> dense = numbered({3, 1, 4});
  const Far<float> f(dense, int64_t{1} << 32);
  EXPECT_TRUE(f.rows_equal(dense));
  EXPECT_EQ(f.view().at(2) - f.view().at(0), int64_t{1} << 33);
  *f.view().at(2, 0, 3) += 1;
  EXPECT_FALSE(f.rows_equal(dense));
}

}  // namespace
}  // namespace kdelta::test
