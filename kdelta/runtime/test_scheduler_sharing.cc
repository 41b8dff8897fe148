// Prompts that begin alike and arrive together: who waits for whose state, and that nobody is worse off by it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "kdelta/runtime/capacity.h"
#include "kdelta/runtime/scheduler.h"

namespace kdelta::runtime {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr SchedulerConfig kConfig{.max_sequences = 8, .token_budget = 256, .prefill_grid = 64, .page_tokens = 64};

Plan plan(const SchedulerConfig& config, const std::vector<Candidate>& candidates, int64_t free_sequences = 8,
          int64_t free_pages = 1 << 20) {
  Plan p;
  plan_step(config, candidates, free_sequences, free_pages, &p);
  return p;
}

Candidate follower(int leader, int64_t awaited, int64_t prompt = 700) {
  return {.prompt = prompt, .known = prompt, .leader = leader, .awaited = awaited};
}

TEST(SchedulerSharing, WhoBeginsAsAnEarlierOneWaitsAndTheEarlierOneGetsTheBudget) {
  const std::vector<Candidate> all{{.prompt = 700, .known = 700}, follower(0, 640), follower(0, 640)};
  const Plan p = plan(kConfig, all);
  ASSERT_EQ(p.rows.size(), 1u);
  EXPECT_EQ(p.rows[0].tokens, 256);
  EXPECT_THAT(p.waiting, ElementsAre(1, 2));
  EXPECT_THAT(p.admitted, ElementsAre(0));
  EXPECT_THAT(explain_plan(kConfig, all, p),
              HasSubstr("request 2: waits for tokens 0..639, which request 0 computes\n"));
}

TEST(SchedulerSharing, NobodyWaitsForWhatItWouldHaveSoonerItself) {
  std::vector<Candidate> all{{.prompt = 700, .known = 700, .computed = 64, .running = true, .pages = 1},
                             follower(0, 640)};
  all[1].computed = 128;  // a prefix that is there already
  EXPECT_THAT(plan(kConfig, all).waiting, IsEmpty());
  all[0].computed = 128;
  EXPECT_THAT(plan(kConfig, all).waiting, ElementsAre(1));
  all[1].computed = all[0].computed = 640 - 63;
  EXPECT_THAT(plan(kConfig, all).waiting, IsEmpty()) << "saves less than wait_from";
}

// Two sequences: the one that waits keeps the second, though it has no row.
TEST(SchedulerSharing, APlaceIsKeptForWhoWaits) {
  std::vector<Candidate> all{{.prompt = 700, .known = 700}, follower(0, 640), {.prompt = 500, .known = 500}};
  EXPECT_THAT(plan(kConfig, all, 2).admitted, ElementsAre(0));
  EXPECT_THAT(plan(kConfig, all, 3).admitted, ElementsAre(0, 2));
  // The first takes 2 of its 11 pages in this step and the third would need 8 in all.
  EXPECT_THAT(plan(kConfig, all, 3, 2 + 11 + 8).admitted, ElementsAre(0, 2));
  EXPECT_THAT(plan(kConfig, all, 3, 2 + 11 + 7).admitted, ElementsAre(0));
  // Who has no place to keep does not wait, and nobody passes it.
  EXPECT_THAT(plan(kConfig, all, 1).waiting, IsEmpty());
}

// What is planned while a step runs leaves it to the next plan whether the state came to be.
TEST(SchedulerSharing, InTheBoundsOfAStepWhoWaitsWaitsOn) {
  const std::vector<Candidate> all{{.prompt = 200, .known = 200}, follower(0, 192)};
  std::vector<Candidate> next;
  bound_candidates(all, kConfig, plan(kConfig, all), &next);
  EXPECT_EQ(next[0].computed, 200);
  EXPECT_THAT(plan(kConfig, next, 7).waiting, ElementsAre(1));
}

// A request of a history. The first `common` tokens are those of every other of its family, as far as both have them.
struct Life {
  int64_t family = 0, common = 0, output = 0;
  Candidate c;
  int64_t arrived = 0, first_token = -1;
};

struct Outcome {
  int64_t steps = 0, prefill_tokens = 0, waited = 0, latest_first_token = 0;
};

class History {
 public:
  History(uint64_t seed, bool shares) : rng_(seed), shares_(shares) {
    c_.max_sequences = pick(2, 6);
    c_.token_budget = c_.max_sequences + pick(64, 300);
    const int64_t n = pick(2, 9);
    for (int64_t i = 0; i < n; ++i) {
      Life l{.family = pick(0, 1), .common = pick(64, 300), .output = pick(1, 20)};
      l.c.prompt = l.c.known = l.common + pick(1, 100);
      l.arrived = pick(0, 2) == 0 ? pick(0, 10) : 0;
      coming_.push_back(l);
    }
    cancels_ = pick(0, 3) == 0;
    all_pages_ = pages_ = pages_for(420, c_.page_tokens) + pick(0, 12);
    sequences_ = c_.max_sequences;
  }

  Outcome run() {
    for (; !coming_.empty() || !lives_.empty(); ++out_.steps) {
      for (size_t i = 0; i < coming_.size();) {
        if (coming_[i].arrived > out_.steps) {
          ++i;
          continue;
        }
        lives_.push_back(coming_[i]);
        coming_.erase(coming_.begin() + static_cast<int64_t>(i));
      }
      if (!lives_.empty()) step();
      if (out_.steps > 2000) ADD_FAILURE() << "does not end";
      if (testing::Test::HasFailure()) break;
    }
    EXPECT_EQ(pages_, all_pages_);
    EXPECT_EQ(sequences_, c_.max_sequences);
    return out_;
  }

 private:
  int64_t pick(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(rng_() % static_cast<uint64_t>(high - low + 1));
  }

  // States lie at every multiple of 64 that somebody awaited, once its leader has passed it.
  void find_leader(size_t i) {
    Candidate& c = lives_[i].c;
    c.leader = -1;
    if (c.running || !shares_) return;
    c.computed = 0;
    for (size_t j = 0; j < i; ++j) {
      const Candidate& l = lives_[j].c;
      const int64_t both = std::min(lives_[i].common, lives_[j].common) / 64 * 64;
      if (lives_[i].family != lives_[j].family) continue;
      if (both <= left_[lives_[j].family]) continue;
      if (l.computed >= both || l.computed >= l.prompt || (c.leader >= 0 && both <= c.awaited)) continue;
      c.leader = static_cast<int>(j);
      c.awaited = both;
    }
    c.computed = std::min({left_[lives_[i].family], lives_[i].common / 64 * 64, (c.prompt - 1) / 64 * 64});
  }

  void step() {
    std::vector<Candidate> all;
    for (size_t i = 0; i < lives_.size(); ++i) {
      find_leader(i);
      all.push_back(lives_[i].c);
    }
    plan_step(c_, all, sequences_, pages_, &plan_);
    ASSERT_TRUE(!plan_.rows.empty() || !plan_.preempted.empty()) << explain_plan(c_, all, plan_);
    int64_t tokens = 0;
    for (const PlanRow& r : plan_.rows) tokens += r.tokens;
    for (const int i : plan_.waiting) check_waiting(i, all, tokens);
    out_.waited += std::ssize(plan_.waiting);
    for (const int i : plan_.preempted) {
      release(lives_[static_cast<size_t>(i)]);
      lives_[static_cast<size_t>(i)].c.computed = 0;
    }
    for (const int i : plan_.admitted) lives_[static_cast<size_t>(i)].c.running = true, --sequences_;
    for (const PlanRow& r : plan_.rows) advance(lives_[static_cast<size_t>(r.candidate)], r);
    for (const int i : plan_.waiting) {
      const Candidate& c = all[static_cast<size_t>(i)];
      if (lives_[static_cast<size_t>(c.leader)].c.computed >= c.awaited)
        left_[lives_[static_cast<size_t>(i)].family] =
            std::max(left_[lives_[static_cast<size_t>(i)].family], c.awaited);
    }
    std::erase_if(lives_, [this](Life& l) {
      const bool ends = l.output <= 0 || (cancels_ && rng_() % 40 == 0);
      if (ends) release(l);
      return ends;
    });
  }

  // Whoever is waited for moves, itself or by the one that it waits for, or the budget went to others who came before.
  void check_waiting(int i, const std::vector<Candidate>& all, int64_t tokens) const {
    const Candidate& c = all[static_cast<size_t>(i)];
    ASSERT_FALSE(c.running);
    ASSERT_LT(c.leader, i);
    int root = c.leader;
    while (std::ranges::find(plan_.waiting, root) != plan_.waiting.end()) root = all[static_cast<size_t>(root)].leader;
    const bool moves = std::ranges::any_of(plan_.rows, [&](const PlanRow& r) { return r.candidate == root; });
    ASSERT_TRUE(moves || tokens + c_.prefill_grid > c_.token_budget) << explain_plan(c_, all, plan_);
  }

  void advance(Life& l, const PlanRow& r) {
    const int64_t need = std::max<int64_t>(0, pages_for(l.c.computed + r.tokens, c_.page_tokens) - l.c.pages);
    pages_ -= need;
    ASSERT_GE(pages_, 0);
    l.c.pages += need;
    l.c.freed_pages = l.c.pages;
    l.c.computed += r.tokens;
    if (r.prefill) out_.prefill_tokens += r.tokens;
    if (l.c.computed < l.c.known) return;
    if (l.first_token < 0)
      l.first_token = out_.steps, out_.latest_first_token = std::max(out_.latest_first_token, out_.steps);
    ++l.c.known;
    --l.output;
  }

  void release(Life& l) {
    pages_ += l.c.pages;
    if (l.c.running) ++sequences_;
    l.c.running = false;
    l.c.pages = l.c.freed_pages = 0;
  }

  SchedulerConfig c_{};
  std::mt19937_64 rng_;
  bool shares_, cancels_ = false;
  int64_t pages_ = 0, all_pages_ = 0, sequences_ = 0;
  int64_t left_[2] = {};  // by family: tokens of the longest state that is kept
  std::vector<Life> coming_, lives_;
  Plan plan_;
  Outcome out_;
};

TEST(SchedulerSharing, InRandomHistoriesEverybodyEndsAndWhoIsWaitedForMoves) {
  int64_t waited = 0, with = 0, without = 0, steps_with = 0, steps_without = 0;
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    const Outcome shared = History(seed, true).run(), apart = History(seed, false).run();
    ASSERT_FALSE(testing::Test::HasFailure()) << "history " << seed;
    waited += shared.waited;
    with += shared.prefill_tokens;
    without += apart.prefill_tokens;
    steps_with += shared.steps;
    steps_without += apart.steps;
  }
  EXPECT_GT(waited, 1000) << "the histories have nothing to share";
  EXPECT_LT(with, without * 4 / 5);
  EXPECT_LE(steps_with, steps_without);
}

}  // namespace
}  // namespace kdelta::runtime
