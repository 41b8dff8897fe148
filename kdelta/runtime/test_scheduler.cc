#include <gtest/gtest.h>

#include <random>

#include "kdelta/runtime/scheduler.h"

namespace kdelta::runtime {
namespace {

Plan plan(const SchedulerConfig& config, const std::vector<Candidate>& candidates, int64_t free_sequences = 100,
          int64_t free_pages = 1 << 20) {
  Plan p;
  plan_step(config, candidates, free_sequences, free_pages, &p);
  return p;
}

constexpr SchedulerConfig kConfig{.max_sequences = 8, .token_budget = 256, .prefill_grid = 64, .page_tokens = 64};

TEST(Scheduler, DecodesGoFirstAndPrefillsShareTheRestOnTheGrid) {
  const Plan p = plan(kConfig, {{.prompt = 10, .known = 12, .computed = 11, .running = true, .pages = 1},
                                {.prompt = 1000, .known = 1000, .computed = 0},
                                {.prompt = 10, .known = 11, .computed = 10, .running = true, .pages = 1}});
  ASSERT_EQ(p.rows.size(), 3u);
  EXPECT_TRUE(p.rows[0].prefill);  // prefill rows lie first
  EXPECT_EQ(p.rows[0].candidate, 1);
  EXPECT_EQ(p.rows[0].tokens, 192);  // 254 left, cut at a multiple of 64
  EXPECT_FALSE(p.rows[1].prefill);
  EXPECT_EQ(p.rows[1].candidate, 0);
  EXPECT_EQ(p.rows[2].candidate, 2);
  EXPECT_EQ(p.admitted, std::vector<int>{1});
  EXPECT_EQ(p.new_pages, 3);
}

// Case B2: what a row is follows from how much was computed.
TEST(Scheduler, APromptOfOneTokenIsPrefillAndASingleLastTokenWithStateIsDecode) {
  Plan p = plan(kConfig, {{.prompt = 1, .known = 1}});
  ASSERT_EQ(p.rows.size(), 1u);
  EXPECT_TRUE(p.rows[0].prefill);
  p = plan(kConfig, {{.prompt = 65, .known = 65, .computed = 64, .running = true, .pages = 1}});
  ASSERT_EQ(p.rows.size(), 1u);
  EXPECT_FALSE(p.rows[0].prefill);
}

TEST(Scheduler, ALoneTokenBehindTheGridIsNeverComputedWithTheChunkBeforeIt) {
  const Plan p = plan(kConfig, {{.prompt = 129, .known = 129}});
  ASSERT_EQ(p.rows.size(), 1u);
  EXPECT_EQ(p.rows[0].tokens, 128);
}

TEST(Scheduler, ABudgetBelowTheGridStillMovesALonePrefill) {
  SchedulerConfig c = kConfig;
  c.token_budget = 8;
  const Plan p = plan(c, {{.prompt = 200, .known = 200}});
  ASSERT_EQ(p.rows.size(), 1u);
  EXPECT_EQ(p.rows[0].tokens, 64);
  // ... but waits while decodes can run.
  const Plan q =
      plan(c, {{.prompt = 4, .known = 5, .computed = 4, .running = true, .pages = 1}, {.prompt = 200, .known = 200}});
  ASSERT_EQ(q.rows.size(), 1u);
  EXPECT_FALSE(q.rows[0].prefill);
}

TEST(Scheduler, GridOneCutsAnywhere) {
  SchedulerConfig c = kConfig;
  c.prefill_grid = 1;
  c.token_budget = 3;
  c.max_sequences = 1;
  EXPECT_EQ(plan(c, {{.prompt = 200, .known = 200}}).rows[0].tokens, 3);
}

TEST(Scheduler, LaterArrivalsDoNotOvertakeAPrefillThatWaitsForMemory) {
  const Plan p = plan(kConfig, {{.prompt = 640, .known = 640}, {.prompt = 10, .known = 10}}, 100, 2);
  EXPECT_TRUE(p.rows.empty());
}

// 20,000 random histories: every request finishes its tokens, no step breaks a limit, every cut lies on the grid.
TEST(Scheduler, RandomHistoriesFinishWithinTheLimits) {
  std::mt19937_64 rng(5);
  for (int history = 0; history < 20000; ++history) {
    SchedulerConfig c;
    c.max_sequences = static_cast<int64_t>(1 + rng() % 4);
    c.token_budget = c.max_sequences + static_cast<int64_t>(rng() % 200);
    c.prefill_grid = rng() % 2 == 0 ? 64 : 1;
    std::vector<Candidate> all;
    for (uint64_t i = 0, n = 1 + rng() % 5; i < n; ++i) {
      const auto prompt = static_cast<int64_t>(1 + rng() % 300);
      all.push_back({.prompt = prompt, .known = prompt});
    }
    std::vector<int64_t> left(all.size());
    for (int64_t& l : left) l = static_cast<int64_t>(rng() % 4);
    int64_t pages = 8 * static_cast<int64_t>(all.size()), sequences = c.max_sequences;
    for (int step = 0; !all.empty(); ++step) {
      ASSERT_LT(step, 5000) << "no progress in history " << history;
      const Plan p = plan(c, all, sequences, pages);
      ASSERT_FALSE(p.rows.empty()) << "history " << history;
      ASSERT_LE(static_cast<int64_t>(p.rows.size()), c.max_sequences);
      int64_t tokens = 0;
      bool decode_seen = false;
      for (const PlanRow& r : p.rows) {
        tokens += r.tokens;
        decode_seen |= !r.prefill;
        ASSERT_TRUE(!r.prefill || !decode_seen) << "a prefill row behind a decode row";
        Candidate& x = all[static_cast<size_t>(r.candidate)];
        const int64_t end = x.computed + r.tokens;
        ASSERT_LE(end, x.known);
        if (r.prefill && end < x.prompt) {
          ASSERT_TRUE(end % c.prefill_grid == 0);
        }
        const int64_t need = (end + c.page_tokens - 1) / c.page_tokens - x.pages;
        pages -= need;
        x.pages += need;
        if (!x.running) x.running = true, --sequences;
        x.computed = end;
      }
      ASSERT_GE(pages, 0);
      ASSERT_GE(sequences, 0);
      ASSERT_LE(tokens, p.rows.size() == 1 ? std::max(c.token_budget, c.prefill_grid) : c.token_budget);
      for (size_t i = all.size(); i-- > 0;) {
        if (all[i].computed < all[i].known) continue;
        if (left[i]-- > 0) {
          ++all[i].known;
          continue;
        }
        pages += all[i].pages;
        ++sequences;
        all.erase(all.begin() + static_cast<int64_t>(i));
        left.erase(left.begin() + static_cast<int64_t>(i));
      }
    }
  }
}

}  // namespace
}  // namespace kdelta::runtime
