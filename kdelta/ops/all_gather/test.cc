#include <gtest/gtest.h>

#include <deque>

#include "kdelta/ops/all_gather/variants.h"
#include "tests/support/op_test.h"
#include "tests/support/ranks.h"
#include "tests/support/spread.h"

namespace kdelta {
namespace {

using test::Guarded;
using test::on_ranks;
using test::Spread;
using test::TestExec;

class AllGather : public test::VariantTest {};
KDELTA_INSTANTIATE_VARIANTS(AllGather, all_gather_variants());

template <class T>
void compare(const std::string& variant, int ranks, int64_t rows, int64_t W) {
  Guarded<T> all({rows, ranks * W});
  test::Rng rng(static_cast<uint64_t>(ranks * 1000 + W));
  fill_normal(all, rng);
  std::deque<Spread<T>> part, out;
  for (int r = 0; r < ranks; ++r) {
    Guarded<T> mine({rows, W});
    for (int64_t t = 0; t < rows; ++t)
      for (int64_t w = 0; w < W; ++w) mine[t * W + w] = all[t * ranks * W + r * W + w];
    part.emplace_back(mine, W + 3);
    out.emplace_back(Shape{rows, ranks * W}, ranks * W + 5);
  }
  on_ranks(ranks, "all_gather", variant,
           [&](const Exec& ex, size_t r) { all_gather(ex, {.part = part[r].view(), .out = out[r].view()}); });
  for (const Spread<T>& o : out) {
    EXPECT_TRUE(o.rows_equal(all)) << ranks << " ranks, " << rows << "x" << W;
    EXPECT_TRUE(o.gaps_intact());
  }
}

TEST_P(AllGather, EveryRankGetsTheColumnsOfAllInRankOrder) {
  for (const int ranks : {1, 2, 3, 16})
    for (const int64_t W : {1, 7, 64, 1000})
      for (const int64_t rows : {1, 3}) {
        compare<float>(GetParam(), ranks, rows, W);
        compare<bf16>(GetParam(), ranks, rows, W);
      }
}

TEST_P(AllGather, ManyRowsOverManyThreadsEqualOne) {
  compare<float>(GetParam(), 3, 200, 300);
}

TEST_P(AllGather, NoRowsStillMeet) {
  std::atomic<int> met{0};
  on_ranks(3, "all_gather", GetParam(), [&](const Exec& ex, size_t) {
    Guarded<float> part({0, 8}), out({0, 24});
    all_gather(ex, {.part = part.view(), .out = out.view()});
    ++met;
  });
  EXPECT_EQ(met, 3);
}

TEST(AllGatherRefuses, WrongArgumentsByName) {
  TestExec own;
  PlannedRanks ranks(0, 2);
  Exec ex = own;
  ex.comm = &ranks;
  Guarded<float> part({2, 8}), out({2, 16});
  auto with = [&](auto change) {
    AllGatherArgs a{.part = part.view(), .out = out.view()};
    change(a);
    return test::error_of([&] { all_gather(ex, a); });
  };
  EXPECT_EQ(with([&](AllGatherArgs& a) {
              a.part.shape = Shape{2, 7};
            }),
            "all_gather: out: shape [2, 16], expected [2, 14]");
  EXPECT_EQ(with([&](AllGatherArgs& a) { a.part.shape = Shape{16}; }), "all_gather: part: shape [16], expected [T, W]");
  EXPECT_EQ(with([&](AllGatherArgs& a) { a.out.dtype = DType::bf16; }), "all_gather: out: dtype BF16, accepted: F32");
  EXPECT_EQ(with([&](AllGatherArgs& a) { a.part.data = out.data(); }),
            "all_gather: out: overlaps part, expected memory of its own");
  ex.comm = nullptr;
  EXPECT_EQ(with([](AllGatherArgs&) {}), "all_gather: no communicator, expected that of the ranks");
}

TEST(AllGatherPlanning, MeetsNobodyAndTouchesNothing) {
  TestExec own;
  PlannedRanks ranks(1, 2);
  Exec ex = own.planning();
  ex.comm = &ranks;
  Guarded<float> part({2, 8}), out({2, 16});
  all_gather(ex, {.part = part.view(), .out = out.view()});
  EXPECT_TRUE(out.untouched());
}

}  // namespace
}  // namespace kdelta
