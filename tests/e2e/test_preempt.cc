// Want of memory in exact mode: requests are sent back to wait, with their state saved or to be computed again, and no
// answer changes by a bit (case B5 for its whole kind).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kdelta/core/error.h"
#include "tests/e2e/crowd.h"

namespace kdelta::test {
namespace {

using runtime::Engine;
using runtime::EngineConfig;
using runtime::FinishReason;
using runtime::RequestId;

class Preempt : public testing::TestWithParam<std::string> {
 protected:
  Preempt() : loaded_(load_placed(GetParam())) {}
  const Model& model() const { return *loaded_.model; }
  // Memory for one and a half of the requests that come.
  EngineConfig config() const {
    EngineConfig c = engine_config(DType::bf16);
    c.options.threads = 1;  // ThreadsDoNotChangeAnAnswer is proven in test_exact
    c.max_sequences = 4;
    c.token_budget = 192;
    c.max_length = 320;
    c.cache_tokens = 448;
    return c;
  }
  std::map<RequestId, Answer> submit_all(Crowd& crowd, int64_t count, int64_t output) const {
    std::map<RequestId, Answer> want;
    for (int64_t i = 0; i < count; ++i) {
      const auto ids = random_prompt(40 + 37 * (i % 4), static_cast<uint64_t>(i));
      const auto o = i % 2 == 0 ? greedy(output) : sampled(static_cast<uint64_t>(i), output);
      want[crowd.submit(ids, o)] = alone(model(), config(), ids, o);
    }
    return want;
  }
  static void expect_equal(Crowd& crowd, const std::map<RequestId, Answer>& want) {
    for (const auto& [id, answer] : want) EXPECT_TRUE(crowd[id] == answer) << "request " << id << crowd[id].error;
  }
  LoadedModel loaded_;
};

INSTANTIATE_TEST_SUITE_P(Models, Preempt, testing::Values("tests/golden/k3_a", "tests/golden/linear_a"),
                         [](const auto& kd) { return kd.param.substr(kd.param.rfind('/') + 1); });

TEST_P(Preempt, AStateThatIsComputedAgainHasTheSameBits) {
  for (const int64_t drafts : {0, 4}) {
    EngineConfig c = config();
    c.drafts = drafts;
    Engine engine(model(), c);
    Crowd crowd(engine);
    const auto want = submit_all(crowd, 6, 90);
    while (crowd.step()) engine.pool().poison_free();
    expect_equal(crowd, want);
    EXPECT_GT(engine.stats().preempted, 0);
    EXPECT_GT(engine.stats().replayed_tokens, 0);
    EXPECT_EQ(engine.stats().saved, 0);
    EXPECT_EQ(engine.pool().free_pages(), 7);
    EXPECT_EQ(engine.pool().free_slots(), 4);
  }
}

TEST_P(Preempt, ASavedStateComesBackAndNothingIsComputedTwice) {
  for (const int64_t drafts : {0, 4}) {
    EngineConfig c = config();
    c.drafts = drafts;
    c.save_bytes = int64_t{1} << 26;
    Engine engine(model(), c);
    Crowd crowd(engine);
    const auto want = submit_all(crowd, 6, 90);
    while (crowd.step()) engine.pool().poison_free();
    expect_equal(crowd, want);
    EXPECT_GT(engine.stats().saved, 0);
    EXPECT_EQ(engine.stats().saved, engine.stats().preempted);
    EXPECT_EQ(engine.stats().replayed_tokens, 0);
    int64_t prompts = 0;
    for (int64_t i = 0; i < 6; ++i) prompts += 40 + 37 * (i % 4);
    // A prompt's lone last token is a decode row.
    EXPECT_LE(engine.stats().prefill_tokens, prompts);
  }
}

// Room for one saved state only: the others start anew; both ways in one run.
TEST_P(Preempt, WhatDoesNotFitTheSaveAreaIsComputedAgain) {
  EngineConfig c = config();
  Engine sizes(model(), c);
  c.save_bytes = sizes.pool().saved_bytes(180);
  Engine engine(model(), c);
  Crowd crowd(engine);
  const auto want = submit_all(crowd, 8, 100);
  crowd.run();
  expect_equal(crowd, want);
  EXPECT_GT(engine.stats().saved, 0);
  EXPECT_GT(engine.stats().preempted, engine.stats().saved);
}

TEST_P(Preempt, ARequestCancelledWhileItWaitsLeavesNothingBehind) {
  for (const int64_t save : {int64_t{0}, int64_t{1} << 26}) {
    EngineConfig c = config();
    c.save_bytes = save;
    Engine engine(model(), c);
    Crowd crowd(engine);
    auto want = submit_all(crowd, 6, 90);
    while (crowd.step()) {
      for (auto it = want.begin(); it != want.end(); ++it) {
        const runtime::Request* r = engine.find(it->first);
        if (r == nullptr || !r->slots.empty() || r->output.empty() || want.size() < 5) continue;
        engine.finish(it->first, FinishReason::cancelled);
        want.erase(it);
        break;
      }
    }
    EXPECT_EQ(want.size(), 4u) << "two were cancelled while preempted";
    expect_equal(crowd, want);
    EXPECT_EQ(engine.pool().free_pages(), 7);
    EXPECT_EQ(engine.pool().free_slots(), 4);
  }
}

}  // namespace
}  // namespace kdelta::test
