// Ranks as threads: they meet, and none waits for one that does not come.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "kdelta/core/communicator.h"
#include "tests/support/op_test.h"

namespace kdelta {
namespace {

using testing::HasSubstr;

TEST(Ranks, EveryRankSeesWhatAllBroughtInRankOrderTimeAfterTime) {
  constexpr int kRanks = 5, kRounds = 200;
  std::atomic<int> seen{0};
  run_ranks(kRanks, [&](Communicator& comm) {
    EXPECT_EQ(comm.ranks(), kRanks);
    for (int round = 0; round < kRounds; ++round) {
      int mine = 100 * round + comm.rank();
      const auto all = comm.meet("sum", {round}, &mine);
      ASSERT_EQ(all.size(), 5u);
      for (int r = 0; r < kRanks; ++r)
        if (*static_cast<const int*>(all[static_cast<size_t>(r)]) == 100 * round + r) ++seen;
      comm.leave();
      mine = -1;  // nobody reads it any more
    }
  });
  EXPECT_EQ(seen, kRanks * kRanks * kRounds);
}

TEST(Ranks, OneRankMeetsItself) {
  run_ranks(1, [](Communicator& comm) {
    int x = 7;
    EXPECT_EQ(comm.meet("sum", {1}, &x)[0], &x);
    comm.leave();
  });
}

// The messages of all ranks, each of which keeps meeting until that throws.
std::vector<std::string> messages_of(int ranks, const std::function<void(Communicator&, int round)>& before) {
  std::vector<std::string> all(static_cast<size_t>(ranks));
  try {
    run_ranks(ranks, [&](Communicator& comm) {
      try {
        for (int round = 0; round < 1000; ++round) {
          before(comm, round);
          comm.meet("sum", {2, 8}, &round);
          comm.leave();
        }
      } catch (const std::exception& e) {
        all[static_cast<size_t>(comm.rank())] = e.what();
        throw;
      }
    });
  } catch (const std::exception&) {
  }
  return all;
}

TEST(Ranks, ARankThatThrowsStopsTheOthersWhereTheyMeet) {
  for (int victim = 0; victim < 4; ++victim) {
    const auto all = messages_of(4, [&](Communicator& comm, int round) {
      if (comm.rank() == victim && round == 3) throw std::runtime_error("out of paper");
    });
    for (int r = 0; r < 4; ++r)
      EXPECT_EQ(all[static_cast<size_t>(r)],
                r == victim ? "out of paper" : str("sum: rank ", victim, " of 4 failed: out of paper"));
  }
}

TEST(Ranks, TheFirstExceptionIsTheOneTheCallerSees) {
  EXPECT_EQ(test::error_of([] {
              run_ranks(3, [](Communicator& comm) {
                if (comm.rank() == 2) fail(ErrorCode::out_of_memory, "rank 2 has no room");
                comm.meet("sum", {1}, nullptr);
                comm.leave();
              });
            }),
            "rank 2 has no room");
}

TEST(Ranks, ARankThatSaysItFailedNeedNotThrow) {
  const auto all = messages_of(3, [&](Communicator& comm, int round) {
    if (comm.rank() == 1 && round == 5) comm.fail("no tokens");
  });
  for (const std::string& message : all) EXPECT_EQ(message, "sum: rank 1 of 3 failed: no tokens");
}

TEST(Ranks, ARankThatEndsEarlyIsNotWaitedFor) {
  std::string message;
  run_ranks(2, [&](Communicator& comm) {
    if (comm.rank() == 1) return;
    message = test::error_of([&] { comm.meet("gather", {3}, nullptr); });
  });
  EXPECT_EQ(message, "gather: rank 1 of 2 has ended");
}

TEST(Ranks, AllHearOfItWhenTheyDoNotRunTheSameStep) {
  for (const bool other_op : {false, true}) {
    std::vector<std::string> all(3);
    run_ranks(3, [&](Communicator& comm) {
      all[static_cast<size_t>(comm.rank())] = test::error_of([&] {
        const bool odd = comm.rank() == 1;
        comm.meet(odd && other_op ? "gather" : "sum", {2, odd ? 9 : 8}, nullptr);
      });
    });
    EXPECT_THAT(all, testing::Each(testing::AllOf(HasSubstr("came to"), HasSubstr("rank 1"), HasSubstr("[2, 9]"))));
  }
}

TEST(Ranks, WhoEndsRightAfterTheLastMeetingDisturbsNobody) {
  for (int i = 0; i < 300; ++i)
    run_ranks(4, [](Communicator& comm) {
      comm.meet("sum", {1}, nullptr);
      comm.leave();
    });
}

TEST(Ranks, NobodyLeavesWhileAnotherStillReadsThoughARankFails) {
  std::atomic<bool> reading{false}, left_early{false};
  const std::string message = test::error_of([&] {
    run_ranks(3, [&](Communicator& comm) {
      comm.meet("sum", {1}, nullptr);
      if (comm.rank() == 0) {
        reading = true;
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        reading = false;
      } else if (comm.rank() == 1) {
        fail(ErrorCode::failed, "broke while reading");
      } else {
        while (!reading) std::this_thread::yield();
      }
      try {
        comm.leave();
      } catch (const Error&) {
        if (reading) left_early = true;
        throw;
      }
    });
  });
  EXPECT_EQ(message, "broke while reading");
  EXPECT_FALSE(left_early);
}

TEST(Ranks, PlannedRanksMeetNobody) {
  PlannedRanks planned(2, 8);
  EXPECT_EQ(planned.rank(), 2);
  EXPECT_EQ(planned.ranks(), 8);
  EXPECT_THAT(test::error_of([&] { planned.meet("sum", {1}, nullptr); }), HasSubstr("while a step is planned"));
  EXPECT_EQ(test::error_of([] { run_ranks(0, [](Communicator&) {}); }), "ranks: 0, expected at least 1");
}

}  // namespace
}  // namespace kdelta
