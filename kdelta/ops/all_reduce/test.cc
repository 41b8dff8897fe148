#include <gtest/gtest.h>

#include <cmath>
#include <deque>

#include "kdelta/ops/all_reduce/variants.h"
#include "tests/support/op_test.h"
#include "tests/support/ranks.h"
#include "tests/support/spread.h"

namespace kdelta {
namespace {

using test::Guarded;
using test::on_ranks;
using test::Spread;
using test::TestExec;

class AllReduce : public test::VariantTest {
 protected:
  void forced(int ranks, const std::function<void(const Exec&, size_t rank)>& f) {
    on_ranks(ranks, "all_reduce", GetParam(), f);
  }
};
KDELTA_INSTANTIATE_VARIANTS(AllReduce, all_reduce_variants());

// What the ranks bring, and the sum in rank order, rounded once.
template <class Out, class Addend>
struct Case {
  Case(int ranks, int64_t T, int64_t D) : addend({T, D}), want({T, D}) {
    test::Rng rng(static_cast<uint64_t>(ranks * 10000 + T * 100 + D));
    for (int r = 0; r < ranks; ++r) {
      partial.emplace_back(Shape{T, D});
      out.emplace_back(Shape{T, D});
      fill_normal(partial.back(), rng, std::exp2(static_cast<float>(r)));
    }
    fill_normal(addend, rng);
    for (int64_t i = 0; i < T * D; ++i) {
      float sum = partial[0][i];
      for (size_t r = 1; r < partial.size(); ++r) sum += partial[r][i];
      want[i] = from_float<Out>(sum + to_float(addend[i]));
    }
  }
  AllReduceArgs args(size_t rank) {
    return {.partial = partial[rank].view(), .addend = addend.view(), .out = out[rank].view()};
  }
  std::vector<Guarded<float>> partial;
  std::vector<Guarded<Out>> out;
  Guarded<Addend> addend;
  Guarded<Out> want;
};

TEST_P(AllReduce, EveryRankGetsTheSumInRankOrderRoundedOnceAtEverySizeAroundTheShares) {
  for (const int ranks : {1, 2, 3, 5, 16})
    for (const int64_t D : {1, 3, 15, 16, 17, 31, 48, 65, 257})
      for (const int64_t T : {1, 3}) {
        const auto compare = [&](auto c) {
          forced(ranks, [&](const Exec& ex, size_t rank) { all_reduce(ex, c.args(rank)); });
          for (auto& out : c.out) {
            EXPECT_TRUE(same_bits(out, c.want)) << ranks << " ranks, " << T << "x" << D;
            EXPECT_TRUE(out.guards_intact());
          }
        };
        compare(Case<float, float>(ranks, T, D));
        compare(Case<bf16, bf16>(ranks, T, D));
        compare(Case<bf16, float>(ranks, T, D));
        compare(Case<float, bf16>(ranks, T, D));
      }
}

// Column 0: 2^-24 twice and 1 are 1 + 2^-23 from the left and 1 from the right. Column 1: bf16 does not hold the first
// partial sum, so rounding it would lose all that is left of it.
TEST_P(AllReduce, OrderIsThatOfTheRanksAndPartialSumsAreNotRounded) {
  const float left[] = {0x1p-24f, 0x1p-24f, 1.0f}, right[] = {0.5f + 0x1p-10f, -0.5f, 0.0f};
  std::vector<Guarded<float>> partial, out;
  std::vector<Guarded<bf16>> rounded;
  for (int r = 0; r < 3; ++r) {
    partial.emplace_back(Shape{1, 2});
    out.emplace_back(Shape{1, 2});
    rounded.emplace_back(Shape{1, 2});
    partial.back()[0] = left[r];
    partial.back()[1] = right[r];
  }
  forced(3, [&](const Exec& ex, size_t r) { all_reduce(ex, {.partial = partial[r].view(), .out = out[r].view()}); });
  forced(3,
         [&](const Exec& ex, size_t r) { all_reduce(ex, {.partial = partial[r].view(), .out = rounded[r].view()}); });
  for (size_t r = 0; r < 3; ++r) {
    EXPECT_EQ(out[r][0], 1 + 0x1p-23f);
    EXPECT_EQ(to_float(rounded[r][1]), 0x1p-10f);
  }
  std::swap(partial[0], partial[2]);
  forced(3, [&](const Exec& ex, size_t r) { all_reduce(ex, {.partial = partial[r].view(), .out = out[r].view()}); });
  for (size_t r = 0; r < 3; ++r) EXPECT_EQ(out[r][0], 1.0f);
}

TEST_P(AllReduce, TheAddendMayBeTheOutputAndRowsMayBeStrided) {
  constexpr int64_t T = 5, D = 70;
  Case<bf16, bf16> c(3, T, D);
  std::deque<Spread<float>> partial;
  std::deque<Spread<bf16>> out;
  for (size_t r = 0; r < 3; ++r) {
    partial.emplace_back(c.partial[r], 91);
    out.emplace_back(c.addend, 83);
  }
  forced(3, [&](const Exec& ex, size_t r) {
    all_reduce(ex, {.partial = partial[r].view(), .addend = out[r].view(), .out = out[r].view()});
  });
  for (const Spread<bf16>& o : out) {
    EXPECT_TRUE(o.rows_equal(c.want));
    EXPECT_TRUE(o.gaps_intact());
  }
}

TEST_P(AllReduce, BitsOfARowDoNotDependOnItsCompany) {
  Case<float, float> all(4, 40, 33);
  forced(4, [&](const Exec& ex, size_t r) { all_reduce(ex, all.args(r)); });
  for (const int64_t t : {int64_t{0}, int64_t{17}, int64_t{39}}) {
    Guarded<float> alone({1, 33}), other({1, 33});
    forced(4, [&](const Exec& ex, size_t r) {
      Guarded<float> out({1, 33});
      all_reduce(ex, {.partial = AnyConstView(all.partial[r].view()).rows(t, 1),
                      .addend = AnyConstView(all.addend.view()).rows(t, 1),
                      .out = (r == 2 ? alone : out).view()});
    });
    EXPECT_TRUE(test::equal_bits(alone.data(), all.want.data() + t * 33, 33)) << t;
  }
}

TEST_P(AllReduce, NoRowsStillMeet) {
  std::atomic<int> met{0};
  forced(3, [&](const Exec& ex, size_t) {
    Guarded<float> nothing({0, 8}), out({0, 8});
    all_reduce(ex, {.partial = nothing.view(), .out = out.view()});
    ++met;
  });
  EXPECT_EQ(met, 3);
}

TEST_P(AllReduce, NaNStaysInItsElement) {
  Case<float, float> c(2, 2, 40);
  c.partial[1][5] = NAN;
  forced(2, [&](const Exec& ex, size_t r) { all_reduce(ex, c.args(r)); });
  for (auto& out : c.out)
    for (int64_t i = 0; i < 80; ++i) EXPECT_EQ(std::isnan(out[i]), i == 5);
}

// Ranks agree on what they write to each other, whichever row of variants.inc each runs.
TEST(AllReduceRanks, MayRunDifferentVariants) {
  const auto names = test::runnable(all_reduce_variants());
  Case<bf16, float> c(static_cast<int>(names.size()), 3, 129);
  run_ranks(static_cast<int>(names.size()), [&](Communicator& comm) {
    TestExec own(1);
    own.force("all_reduce", names[static_cast<size_t>(comm.rank())]);
    Exec ex = own;
    ex.comm = &comm;
    all_reduce(ex, c.args(static_cast<size_t>(comm.rank())));
  });
  for (auto& out : c.out) EXPECT_TRUE(same_bits(out, c.want));
}

TEST(AllReduceRanks, DifferentShapesOrDtypesAreRefusedOnEveryRank) {
  for (const bool other_dtype : {false, true}) {
    std::vector<std::string> message(2);
    run_ranks(2, [&](Communicator& comm) {
      TestExec own(1);
      Exec ex = own;
      ex.comm = &comm;
      const int64_t T = comm.rank() == 0 || other_dtype ? 2 : 3;
      Guarded<float> partial({T, 8}), out({T, 8});
      Guarded<bf16> half({T, 8});
      const AnyView to = comm.rank() == 1 && other_dtype ? AnyView(half.view()) : AnyView(out.view());
      message[static_cast<size_t>(comm.rank())] =
          test::error_of([&] { all_reduce(ex, {.partial = partial.view(), .out = to}); });
      EXPECT_TRUE(out.untouched());
    });
    for (const std::string& m : message)
      EXPECT_THAT(m, testing::AllOf(testing::HasSubstr("all_reduce to F32 [2, 8]"),
                                    testing::HasSubstr(other_dtype ? "to BF16 [2, 8]" : "to F32 [3, 8]")));
  }
}

TEST(AllReduceRefuses, WrongArgumentsByName) {
  TestExec own;
  PlannedRanks ranks(0, 2);
  Exec ex = own;
  ex.comm = &ranks;
  Guarded<float> partial({2, 8}), addend({2, 8}), out({2, 8});
  Guarded<bf16> half({2, 8});
  const AllReduceArgs good{.partial = partial.view(), .addend = addend.view(), .out = out.view()};
  auto with = [&](auto change) {
    AllReduceArgs a = good;
    change(a);
    return test::error_of([&] { all_reduce(ex, a); });
  };
  EXPECT_EQ(with([&](AllReduceArgs& a) { a.partial = half.view(); }), "all_reduce: partial: dtype BF16, accepted: F32");
  EXPECT_EQ(with([&](AllReduceArgs& a) {
              a.partial.shape = Shape{2, 7};
            }),
            "all_reduce: partial: shape [2, 7], expected [2, 8]");
  EXPECT_EQ(with([&](AllReduceArgs& a) { a.out.shape = Shape{16}; }), "all_reduce: out: shape [16], expected [T, D]");
  EXPECT_EQ(with([&](AllReduceArgs& a) { a.out.dtype = DType::i32; }),
            "all_reduce: out: dtype I32, accepted: F32, BF16");
  EXPECT_EQ(with([&](AllReduceArgs& a) { a.addend.stride[1] = 2; }),
            "all_reduce: addend: stride 2 on the last axis, expected 1");
  EXPECT_EQ(with([&](AllReduceArgs& a) { a.partial = out.view(); }),
            "all_reduce: out: overlaps partial, expected memory of its own");
  EXPECT_EQ(with([&](AllReduceArgs& a) {
              a.partial = a.partial.rows(0, 1);
              a.out = a.out.rows(0, 1);
              a.addend = AnyConstView(out.data() + 4, DType::f32, {1, 8});
            }),
            "all_reduce: out: overlaps addend other than as the same array, expected memory of its own");
  ex.comm = nullptr;
  EXPECT_EQ(with([](AllReduceArgs&) {}), "all_reduce: no communicator, expected that of the ranks");
}

TEST(AllReducePlanning, MeetsNobodyAndTouchesNothing) {
  TestExec own;
  PlannedRanks ranks(1, 8);
  Exec ex = own.planning();
  ex.comm = &ranks;
  Guarded<float> partial({2, 8}), out({2, 8});
  all_reduce(ex, {.partial = partial.view(), .out = out.view()});
  EXPECT_TRUE(out.untouched());
}

}  // namespace
}  // namespace kdelta
