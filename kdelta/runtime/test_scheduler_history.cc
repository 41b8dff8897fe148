// Simulated histories: arrivals, cancellations, drafts, want of memory. What must hold in every one of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "kdelta/runtime/capacity.h"
#include "kdelta/runtime/scheduler.h"

namespace kdelta::runtime {
namespace {

// One request of a history. Saved: preempting it keeps its state.
struct Life {
  Candidate c;
  int64_t output = 0;  // tokens that it will generate
  bool saves = false;
  int64_t arrived = 0, last_progress = 0;
};

struct History {
  SchedulerConfig config;
  int64_t pages = 0, sequences = 0;  // free
  int64_t all_pages = 0;
  std::vector<Life> lives;
  std::mt19937_64 rng;
  int64_t step = 0, preemptions = 0, longest_wait = 0;
  Plan plan, second;
  std::vector<Candidate> candidates, bounds;
};

int64_t pick(std::mt19937_64& rng, int64_t low, int64_t high) {
  return low + static_cast<int64_t>(rng() % static_cast<uint64_t>(high - low + 1));
}

void arrive(History& h) {
  Life l;
  l.c.prompt = l.c.known = pick(h.rng, 1, h.rng() % 4 == 0 ? 300 : 40);
  l.output = pick(h.rng, 1, 30);
  l.saves = h.rng() % 2 == 0;
  l.arrived = l.last_progress = h.step;
  if (pages_for(l.c.prompt + l.output, h.config.page_tokens) <= h.all_pages) h.lives.push_back(l);
}

void release(History& h, Life& l) {
  h.pages += l.c.pages;
  if (l.c.running) ++h.sequences;
  l.c.pages = l.c.freed_pages = 0;
  l.c.running = false;
}

void check_rows(const History& h) {
  int64_t tokens = 0;
  bool decode_seen = false;
  std::vector<int> seen;
  for (const PlanRow& r : h.plan.rows) {
    const Candidate& c = h.candidates[static_cast<size_t>(r.candidate)];
    const int64_t end = c.computed + r.tokens;
    tokens += r.tokens;
    seen.push_back(r.candidate);
    ASSERT_GE(r.tokens, 1);
    ASSERT_TRUE(!r.prefill || !decode_seen) << "a prefill row behind a decode row";
    decode_seen |= !r.prefill;
    ASSERT_LE(end - r.drafts, c.known);
    ASSERT_TRUE(r.drafts == 0 || end - r.drafts == c.known) << "drafts behind tokens that are still missing";
    ASSERT_LE(r.drafts, c.drafts);
    ASSERT_TRUE(r.prefill || r.tokens <= h.config.columns);
    // What a row is follows from how much was computed (case B2).
    ASSERT_EQ(r.prefill, c.prompt - c.computed > 1 || c.computed == 0);
    if (r.prefill) {
      ASSERT_LE(end, c.prompt);
      ASSERT_TRUE(end == c.prompt || end % h.config.prefill_grid == 0);
      ASSERT_FALSE(h.config.prefill_grid > 1 && end == c.prompt && end % h.config.prefill_grid == 1 && r.tokens > 1);
    }
  }
  ASSERT_LE(static_cast<int64_t>(h.plan.rows.size()), h.config.max_sequences);
  ASSERT_LE(tokens,
            h.plan.rows.size() == 1 ? std::max(h.config.token_budget, h.config.prefill_grid) : h.config.token_budget);
  for (const int i : h.plan.preempted) {
    seen.push_back(i);
    ASSERT_TRUE(h.candidates[static_cast<size_t>(i)].running);
    // Only somebody who came earlier may take its pages.
    ASSERT_TRUE(
        std::any_of(h.plan.rows.begin(), h.plan.rows.end(), [&](const PlanRow& r) { return r.candidate < i; }) ||
        h.plan.rows.empty());
  }
  std::sort(seen.begin(), seen.end());
  ASSERT_EQ(std::adjacent_find(seen.begin(), seen.end()), seen.end()) << "two things at once with one candidate";
}

// What is planned before the last step's tokens are known holds for whatever they turn out to be.
void check_bounds(const History& h, const std::vector<Candidate>& bounds, std::span<const Life> after) {
  Plan early, late;
  std::vector<Candidate> truth;
  for (size_t i = 0; i < after.size(); ++i) {
    const Candidate &t = after[i].c, &b = bounds[i];
    ASSERT_LE(t.computed, b.computed);
    ASSERT_LE(t.known, b.known);
    ASSERT_LE(t.pages, b.pages);
    ASSERT_EQ(t.running, b.running);
    truth.push_back(t);
    truth.back().drafts = 0;
  }
  plan_step(h.config, bounds, h.sequences, h.pages, &early);
  for (const PlanRow& r : early.rows) {
    const Candidate& t = truth[static_cast<size_t>(r.candidate)];
    // A row planned from bounds has its token, its pages and its kind in truth.
    ASSERT_EQ(r.prefill, t.prompt - t.computed > 1 || t.computed == 0);
    ASSERT_TRUE(!r.prefill || t.computed == bounds[static_cast<size_t>(r.candidate)].computed);
    ASSERT_LE(pages_for(t.computed + r.tokens, h.config.page_tokens),
              pages_for(bounds[static_cast<size_t>(r.candidate)].computed + r.tokens, h.config.page_tokens));
  }
}

void apply(History& h) {
  for (const int i : h.plan.preempted) {
    Life& l = h.lives[static_cast<size_t>(i)];
    release(h, l);
    if (!l.saves) l.c.computed = 0;
    ++h.preemptions;
  }
  for (const int i : h.plan.admitted) {
    ASSERT_FALSE(h.lives[static_cast<size_t>(i)].c.running);
    h.lives[static_cast<size_t>(i)].c.running = true;
    --h.sequences;
  }
  for (const PlanRow& r : h.plan.rows) {
    Life& l = h.lives[static_cast<size_t>(r.candidate)];
    ASSERT_TRUE(l.c.running);
    const int64_t need = std::max<int64_t>(0, pages_for(l.c.computed + r.tokens, h.config.page_tokens) - l.c.pages);
    h.pages -= need;
    l.c.pages += need;
    l.c.freed_pages = l.c.pages;
    l.c.computed += r.tokens - r.drafts;
    l.last_progress = h.step;
    if (l.c.computed < l.c.known) continue;
    const int64_t kept = pick(h.rng, 0, r.drafts);
    l.c.computed += kept;
    l.c.known = l.c.computed + 1;
    l.output -= 1 + kept;
  }
  ASSERT_GE(h.pages, 0);
  ASSERT_GE(h.sequences, 0);
}

void one_step(History& h) {
  h.candidates.clear();
  for (Life& l : h.lives) {
    l.c.drafts =
        l.c.running && l.c.known - l.c.computed == 1 ? pick(h.rng, 0, std::min(h.config.columns - 1, l.output - 1)) : 0;
    h.candidates.push_back(l.c);
  }
  plan_step(h.config, h.candidates, h.sequences, h.pages, &h.plan);
  plan_step(h.config, h.candidates, h.sequences, h.pages, &h.second);
  ASSERT_TRUE(std::equal(h.plan.rows.begin(), h.plan.rows.end(), h.second.rows.begin(), h.second.rows.end(),
                         [](const PlanRow& a, const PlanRow& b) {
                           return a.candidate == b.candidate && a.tokens == b.tokens && a.drafts == b.drafts;
                         }))
      << "same input, other plan";
  ASSERT_TRUE(!h.plan.rows.empty() || !h.plan.preempted.empty())
      << "no progress with " << h.pages << " pages and " << h.sequences << " slots free\n"
      << explain_plan(h.config, h.candidates, h.plan);
  check_rows(h);
  if (testing::Test::HasFatalFailure()) return;
  bound_candidates(h.candidates, h.config, h.plan, &h.bounds);
  apply(h);
  if (testing::Test::HasFatalFailure()) return;
  if (h.plan.preempted.empty() && h.step % 8 == 0) check_bounds(h, h.bounds, h.lives);
  for (size_t i = h.lives.size(); i-- > 0;) {
    Life& l = h.lives[i];
    h.longest_wait = std::max(h.longest_wait, h.step - l.last_progress);
    if (l.output > 0 && h.rng() % 200 != 0) continue;  // now and then somebody cancels, at any moment
    release(h, l);
    h.lives.erase(h.lives.begin() + static_cast<int64_t>(i));
  }
}

History make(uint64_t seed) {
  History h;
  h.rng.seed(seed);
  h.config.max_sequences = pick(h.rng, 1, 6);
  h.config.token_budget = h.config.max_sequences + pick(h.rng, 0, 200);
  h.config.prefill_grid = h.rng() % 2 == 0 ? 64 : 1;
  h.config.page_tokens = h.rng() % 2 == 0 ? 64 : 16;
  h.config.columns = h.rng() % 2 == 0 ? 1 : pick(h.rng, 1, 17);
  h.all_pages = h.pages = pages_for(330, h.config.page_tokens) + pick(h.rng, 0, 8);
  h.sequences = h.config.max_sequences;
  return h;
}

TEST(SchedulerHistory, AHundredThousandRandomHistoriesEndWithEveryLimitKept) {
  int64_t preemptions = 0;
  for (uint64_t seed = 0; seed < 100000; ++seed) {
    History h = make(seed);
    const int64_t arrivals = pick(h.rng, 1, 7);
    int64_t arrived = 0;
    for (; arrived < arrivals || !h.lives.empty(); ++h.step) {
      if (arrived < arrivals && (h.lives.empty() || h.rng() % 3 == 0)) arrive(h), ++arrived;
      if (h.lives.empty()) continue;
      one_step(h);
      ASSERT_LT(h.step, 4000) << "history " << seed << " does not end";
      if (testing::Test::HasFatalFailure()) FAIL() << "history " << seed << ", step " << h.step;
    }
    ASSERT_EQ(h.pages, h.all_pages) << "history " << seed << " lost pages";
    ASSERT_EQ(h.sequences, h.config.max_sequences) << "history " << seed << " lost slots";
    preemptions += h.preemptions;
  }
  EXPECT_GT(preemptions, 1000) << "the histories never want memory";
}

// A stream of short requests does not starve a long prompt, nor a long prompt the short ones: with memory for all that
// run, whoever came waits at most for those before it.
TEST(SchedulerHistory, NobodyWaitsForLaterArrivals) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    History h = make(seed);
    h.config.token_budget = 128 + h.config.max_sequences;
    h.config.prefill_grid = 64;
    h.pages = h.all_pages = 4000;
    for (int64_t s = 0; s < 400; ++s, ++h.step) {
      if (h.rng() % 4 == 0) arrive(h);
      if (h.lives.empty()) continue;
      const int64_t oldest = h.lives[0].arrived;
      one_step(h);
      ASSERT_FALSE(testing::Test::HasFatalFailure());
      // Who runs decodes on every step.
      for (const Life& l : h.lives)
        ASSERT_TRUE(!l.c.running || l.c.computed < l.c.prompt || l.last_progress >= h.step - 1);
      // The oldest of all moves on every step.
      ASSERT_TRUE(h.lives.empty() || h.lives[0].arrived != oldest || h.lives[0].last_progress == h.step);
    }
  }
}

}  // namespace
}  // namespace kdelta::runtime
