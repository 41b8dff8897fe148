// The asynchronous form: a step is planned while the one before it runs, from bounds in place of its tokens. Simulated
// with a model of numbers whose every token depends on all before it and on the kind of row that computed each, so that
// a token computed twice, out of order, by another kind of row or from a state that was not rolled back shows.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>

#include "kdelta/runtime/capacity.h"
#include "kdelta/runtime/scheduler.h"

namespace kdelta::runtime {
namespace {

constexpr int64_t kGrid = 64;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr uint64_t kHistories = 3000;
#else
constexpr uint64_t kHistories = 100000;
#endif

uint64_t mix(uint64_t state, uint64_t token, bool prefill) {
  uint64_t z = (state + token * 2 + (prefill ? 1 : 0) + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  return z ^ (z >> 27);
}
uint64_t next_token(uint64_t state) {
  return state >> 44;
}

struct Job {
  uint64_t id = 0;
  int64_t prompt = 0, output = 0;
  bool saves = false;  // preempting it keeps its state

  // What a request alone, in one piece, without drafts answers.
  std::vector<uint64_t> alone() const {
    std::vector<uint64_t> tokens = first();
    uint64_t state = 0;
    for (int64_t i = 0; i < prompt + output - 1; ++i) {
      const bool lone = i == prompt - 1 && i > 0 && prompt % kGrid == 1;
      state = mix(state, tokens[static_cast<size_t>(i)], i < prompt && !lone);
      if (i >= prompt - 1) tokens.push_back(next_token(state));
    }
    return tokens;
  }
  std::vector<uint64_t> first() const {
    std::vector<uint64_t> tokens;
    for (int64_t i = 0; i < prompt; ++i) tokens.push_back(mix(id, static_cast<uint64_t>(i), true) >> 44);
    return tokens;
  }
};

// A request as the device knows it.
struct Life {
  explicit Life(const Job& j) : job(j), tokens(j.first()) {}
  Job job;
  std::vector<uint64_t> tokens, states;  // states: after each computed token
  int64_t pages = 0;                     // held
  bool running = false, ended = false;

  int64_t known() const { return std::ssize(tokens); }
  int64_t computed() const { return std::ssize(states); }
  void compute(uint64_t token, bool prefill) {
    states.push_back(mix(states.empty() ? 0 : states.back(), token, prefill));
  }

  void run(const PlanRow& row, int64_t columns) {
    ASSERT_EQ(row.prefill, job.prompt - computed() > 1 || computed() == 0) << "another kind of row in truth";
    const int64_t certain = std::min(row.tokens - row.drafts, known() - computed());
    ASSERT_GE(certain, 1);
    ASSERT_TRUE(!row.prefill || certain == row.tokens);
    ASSERT_TRUE(row.prefill || row.tokens <= columns);
    for (int64_t i = 0; i < certain; ++i) compute(tokens[static_cast<size_t>(computed())], row.prefill);
    for (int64_t left = row.drafts; computed() == known(); --left) {
      tokens.push_back(next_token(states.back()));
      ended = known() == job.prompt + job.output;
      // Of three drafts two are right, whatever the step.
      const bool right = left > 0 && mix(job.id, static_cast<uint64_t>(known()), false) % 3 != 0;
      if (ended || !right) break;
      compute(tokens.back(), false);
    }
  }
};

class Simulation {
 public:
  Simulation(uint64_t seed, bool early) : rng_(seed), early_(early) {
    c_.max_sequences = pick(1, 6);
    c_.token_budget = c_.max_sequences + pick(0, 200);
    c_.prefill_grid = kGrid;
    c_.page_tokens = pick(0, 1) == 0 ? 64 : 16;
    c_.columns = pick(0, 1) == 0 ? 1 : pick(1, 17);
    all_pages_ = pages_ = pages_for(340, c_.page_tokens) + pick(0, 8);
    sequences_ = c_.max_sequences;
  }

  void run() {
    int64_t arrivals = pick(1, 7), idle = 0;
    Plan running;
    for (int64_t step = 0; arrivals > 0 || !lives_.empty(); ++step) {
      ASSERT_LT(step, 4000) << "does not end";
      if (arrivals > 0 && (lives_.empty() || pick(0, 2) == 0)) arrive(), --arrivals;
      // Early: what the step that runs will have done is known by its bounds alone.
      Plan next;
      plan(running, &next);
      if (early_) finish(running);
      if (testing::Test::HasFatalFailure()) return;
      launch(next);
      idle = next.rows.empty() && next.preempted.empty() ? idle + 1 : 0;
      ASSERT_LE(idle, early_ ? 1 : 0) << "no progress";
      running = next;
      forget_ended(running);
      if (early_) continue;
      finish(running);
      running = {};
      forget_ended(running);
    }
    ASSERT_EQ(pages_, all_pages_);
    ASSERT_EQ(sequences_, c_.max_sequences);
  }

  int64_t preempted = 0, void_rows = 0, rejected = 0;

 private:
  int64_t pick(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(rng_() % static_cast<uint64_t>(high - low + 1));
  }

  void arrive() {
    Job j{.id = rng_(), .prompt = pick(1, pick(0, 3) == 0 ? 300 : 70), .output = pick(1, 30), .saves = pick(0, 1) == 0};
    lives_.push_back(std::make_unique<Life>(j));
  }

  Candidate candidate(const Life& l) const {
    return {.prompt = l.job.prompt,
            .known = l.known(),
            .computed = l.computed(),
            .running = l.running,
            .pages = l.pages,
            .freed_pages = l.pages};
  }

  void plan(const Plan& running, Plan* next) {
    std::vector<Candidate> truth;
    for (const auto& l : lives_) truth.push_back(candidate(*l));
    bound_candidates(truth, c_, running, &bounds_);
    for (Candidate& b : bounds_)
      if (b.running && b.known - b.computed == 1) b.drafts = pick(0, c_.columns - 1);
    plan_step(c_, bounds_, sequences_, pages_, next);
    ASSERT_LE(std::ssize(next->rows), c_.max_sequences);
  }

  // The tokens of a step arrive. Who ended before has a row that means nothing.
  void finish(const Plan& step) {
    for (const PlanRow& row : step.rows) {
      Life& l = *lives_[static_cast<size_t>(row.candidate)];
      if (l.ended) {
        ++void_rows;
        continue;
      }
      ASSERT_TRUE(l.running);
      ASSERT_GE(l.pages, pages_for(l.computed() + row.tokens, c_.page_tokens)) << "a row without its pages";
      const int64_t most = l.computed() + row.tokens;
      l.run(row, c_.columns);
      if (testing::Test::HasFatalFailure()) return;
      rejected += most - l.computed();
      if (l.ended) {
        ASSERT_EQ(l.tokens, l.job.alone());
      }
    }
    for (auto& l : lives_)
      if (!l->ended && pick(0, 400) == 0) l->ended = true;  // cancelled, at any moment
  }

  void release(Life& l) {
    pages_ += std::exchange(l.pages, 0);
    if (std::exchange(l.running, false)) ++sequences_;
  }

  // Memory moves when a step is launched, by the bounds from which it was planned.
  void launch(const Plan& step) {
    for (const int i : step.preempted) {
      Life& l = *lives_[static_cast<size_t>(i)];
      release(l);
      if (!l.job.saves) l.states.clear();
      ++preempted;
    }
    for (const int i : step.admitted) {
      lives_[static_cast<size_t>(i)]->running = true;
      --sequences_;
    }
    for (const PlanRow& row : step.rows) {
      Life& l = *lives_[static_cast<size_t>(row.candidate)];
      const int64_t need = pages_for(bounds_[static_cast<size_t>(row.candidate)].computed + row.tokens, c_.page_tokens);
      pages_ -= std::max<int64_t>(0, need - l.pages);
      l.pages = std::max(l.pages, need);
    }
    ASSERT_GE(pages_, 0);
    ASSERT_GE(sequences_, 0);
  }

  // Takes the ended out of the list, and their rows out of the step that runs: their memory is free from the next plan
  // on, because the device is through with the rows before anything of that plan is written.
  void forget_ended(Plan& running) {
    std::vector<int> number(lives_.size(), -1);
    int n = 0;
    for (size_t i = 0; i < lives_.size(); ++i)
      if (!lives_[i]->ended) number[i] = n++;
    for (auto& l : lives_)
      if (l->ended) release(*l);
    std::erase_if(running.rows, [&](PlanRow& row) {
      const bool gone = number[static_cast<size_t>(row.candidate)] < 0;
      void_rows += gone ? 1 : 0;
      row.candidate = number[static_cast<size_t>(row.candidate)];
      return gone;
    });
    running.admitted.clear();
    running.preempted.clear();  // launched: the candidates know
    std::erase_if(lives_, [](const auto& l) { return l->ended; });
  }

  std::mt19937_64 rng_;
  bool early_;
  SchedulerConfig c_;
  int64_t all_pages_ = 0, pages_ = 0, sequences_ = 0;
  std::vector<std::unique_ptr<Life>> lives_;
  std::vector<Candidate> bounds_;
};

void simulate(bool early) {
  int64_t preempted = 0, void_rows = 0, rejected = 0;
  for (uint64_t seed = 0; seed < kHistories; ++seed) {
    Simulation s(seed, early);
    s.run();
    if (testing::Test::HasFatalFailure()) FAIL() << "history " << seed;
    preempted += s.preempted, void_rows += s.void_rows, rejected += s.rejected;
  }
  EXPECT_GT(preempted, 20);
  EXPECT_GT(rejected, 500);
  if (early) {
    EXPECT_GT(void_rows, 500) << "rows of requests that had ended unknown to the plan";
  }
}

TEST(SchedulerAsync, PlannedBeforeTheLastTokensAreKnownEveryRequestAnswersAsAlone) {
  simulate(true);
}

TEST(SchedulerAsync, PlannedAfterwardsEveryRequestAnswersAsAlone) {
  simulate(false);
}

}  // namespace
}  // namespace kdelta::runtime
