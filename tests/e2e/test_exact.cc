// Exact mode, the default on the CPU: a request's answer does not depend, bit for bit, on company, arrival, budget or
// what memory held before. Run on both models in the dtype that users get.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>

#include "kdelta/core/error.h"
#include "tests/e2e/support.h"

namespace kdelta::test {
namespace {

using runtime::FinishReason;
using runtime::RequestId;
using runtime::TokenEvent;

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  FinishReason finish = FinishReason::none;
  std::string error;
  bool operator==(const Answer& o) const { return tokens == o.tokens && same_bits(logprobs, o.logprobs); }
};

class Exact : public testing::TestWithParam<std::string> {
 protected:
  Exact() : loaded_(load_placed(GetParam())) {}
  const Model& model() const { return *loaded_.model; }

  std::vector<int32_t> prompt(int64_t length, uint64_t seed) const {
    std::mt19937_64 rng(seed);
    std::vector<int32_t> ids(static_cast<size_t>(length));
    for (int32_t& id : ids) id = static_cast<int32_t>(rng() % 500);
    return ids;
  }

  runtime::RequestOptions sampled(uint64_t seed, int64_t tokens = 12) const {
    runtime::RequestOptions o;
    o.sampling.temperature = 0.8f;
    o.sampling.seed = seed;
    o.max_tokens = tokens;
    o.top_logprobs = 0;
    return o;
  }

  runtime::EngineConfig config(int64_t sequences, int64_t budget) const {
    runtime::EngineConfig c = engine_config(DType::bf16);
    c.max_sequences = sequences;
    c.token_budget = budget;
    c.max_length = 512;
    return c;
  }

  static void record(std::map<RequestId, Answer>& answers, const TokenEvent& e) {
    Answer& a = answers[e.id];
    if (e.token >= 0) a.tokens.push_back(e.token), a.logprobs.push_back(e.sample->logprob);
    a.finish = e.finish;
    if (e.error != nullptr) a.error = *e.error;
  }

  Answer solo(const std::vector<int32_t>& ids, const runtime::RequestOptions& o, int64_t budget = 512) const {
    runtime::Engine engine(model(), config(1, budget));
    const RequestId id = engine.submit(ids, o);
    std::map<RequestId, Answer> answers;
    while (engine.step([&](const TokenEvent& e) { record(answers, e); })) {
    }
    return answers[id];
  }

  LoadedModel loaded_;
};

INSTANTIATE_TEST_SUITE_P(Models, Exact, testing::Values("tests/golden/k3_a", "tests/golden/linear_a"),
                         [](const auto& kd) { return kd.param.substr(kd.param.rfind('/') + 1); });

// Cases B1, B6: requests of different lengths at once, one of them cancelled, arrivals while others decode.
TEST_P(Exact, CompanyAndArrivalDoNotChangeAnAnswer) {
  const int64_t lengths[] = {10, 26, 1, 64, 65, 129, 200};
  std::map<RequestId, Answer> want, got;
  runtime::Engine engine(model(), config(4, 128));
  RequestId cancelled = 0;
  size_t next = 0;
  int steps = 0;
  const auto arrive = [&] {
    const auto ids = prompt(lengths[next], next);
    const RequestId id = engine.submit(ids, sampled(next));
    if (next == 3)
      cancelled = id;
    else
      want[id] = solo(ids, sampled(next));
    ++next;
  };
  arrive(), arrive();
  while (engine.step([&](const TokenEvent& e) { record(got, e); }) || next < std::size(lengths)) {
    if (++steps % 2 == 0 && next < std::size(lengths)) arrive();
    if (steps == 9) engine.finish(cancelled, FinishReason::cancelled);
  }
  got.erase(cancelled);
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [id, answer] : want) EXPECT_TRUE(got[id] == answer) << "request " << id;
}

// Case C4 in exact mode: budgets cut the prompt at every place the grid allows.
TEST_P(Exact, TheBudgetDoesNotChangeAnAnswer) {
  for (int64_t length : {63, 64, 65, 129, 197}) {
    const auto ids = prompt(length, 77);
    const Answer want = solo(ids, sampled(3), 512);
    for (int64_t budget : {1, 64, 65, 127, 128, 191})
      EXPECT_TRUE(solo(ids, sampled(3), budget) == want) << length << " with " << budget;
  }
}

// Cases C2, C7 and B2: whatever free slots and pages hold, and whoever held them.
TEST_P(Exact, PoisonedMemoryAndReusedSlotsDoNotChangeAnAnswer) {
  runtime::EngineConfig c = config(1, 512);
  c.cache_tokens = 512;
  runtime::Engine engine(model(), c);
  for (int round = 0; round < 3; ++round) {
    for (int64_t length : {150, 1, 17}) {
      engine.pool().poison_free();
      const auto ids = prompt(length, static_cast<uint64_t>(length));
      const RequestId id = engine.submit(ids, sampled(9, 6));
      std::map<RequestId, Answer> got;
      while (engine.step([&](const TokenEvent& e) { record(got, e); })) engine.pool().poison_free();
      EXPECT_TRUE(got[id] == solo(ids, sampled(9, 6))) << "round " << round << " length " << length;
    }
  }
}

TEST_P(Exact, ThreadsDoNotChangeAnAnswer) {
  const auto ids = prompt(100, 5);
  const Answer want = solo(ids, sampled(1));
  for (int threads : {1, 3}) {
    runtime::EngineConfig c = config(1, 512);
    c.options.threads = threads;
    runtime::Engine engine(model(), c);
    std::map<RequestId, Answer> got;
    const RequestId id = engine.submit(ids, sampled(1));
    while (engine.step([&](const TokenEvent& e) { record(got, e); })) {
    }
    EXPECT_TRUE(got[id] == want) << threads << " threads";
  }
}

// Case B6: a step that throws ends its own requests with an error; those that wait are served.
TEST_P(Exact, AFailedStepFailsItsRequestsAndTheOthersGoOn) {
  class Bomb final : public TensorProbe {
   public:
    void on_tensor(std::string_view, int, const AnyConstView&, Stream*) override {
      if (armed) fail(ErrorCode::failed, "injected");
    }
    bool armed = true;
  } bomb;
  runtime::Engine engine(model(), config(1, 512));
  const auto ids = prompt(20, 1);
  const RequestId first = engine.submit(ids, sampled(4)), second = engine.submit(ids, sampled(4));
  engine.observe(nullptr, &bomb);
  std::map<RequestId, Answer> got;
  while (engine.step([&](const TokenEvent& e) {
    record(got, e);
    bomb.armed = false;
  })) {
  }
  EXPECT_EQ(got[first].finish, FinishReason::error);
  EXPECT_EQ(got[first].error, "injected");
  EXPECT_TRUE(got[second] == solo(ids, sampled(4)));
  EXPECT_EQ(engine.pool().free_slots(), 1);
}

// A callback that throws, or ends others, finds every request committed.
TEST_P(Exact, AThrowingCallbackLosesNoRequest) {
  runtime::Engine engine(model(), config(2, 512));
  const auto ids = prompt(20, 1);
  const RequestId a = engine.submit(ids, sampled(4)), b = engine.submit(ids, sampled(5));
  EXPECT_THROW(engine.step([](const TokenEvent&) { fail(ErrorCode::failed, "callback"); }), Error);
  std::map<RequestId, Answer> got;
  while (engine.step([&](const TokenEvent& e) { record(got, e); })) {
  }
  Answer want = solo(ids, sampled(5));
  EXPECT_EQ(got[b].finish, FinishReason::length);
  EXPECT_TRUE(std::equal(got[b].tokens.begin(), got[b].tokens.end(), want.tokens.begin() + 1))
      << "the first was lost with the throw";
  EXPECT_EQ(got[a].finish, FinishReason::length);
}

TEST_P(Exact, ARequestEndedByACallbackIsHeardNoMore) {
  runtime::Engine engine(model(), config(2, 512));
  const RequestId a = engine.submit(prompt(20, 1), sampled(4)), b = engine.submit(prompt(9, 2), sampled(5));
  int events_of_b = 0;
  while (engine.step([&](const TokenEvent& e) {
    if (e.id == a) engine.finish(b, FinishReason::cancelled);
    events_of_b += e.id == b ? 1 : 0;
  })) {
  }
  EXPECT_EQ(events_of_b, 0);
}

// Case B5: a full cache sends the youngest holder back to wait, and nobody loses a bit.
TEST_P(Exact, AFullCachePreemptsTheYoungestHolderAndNoAnswerChanges) {
  runtime::EngineConfig c = config(2, 256);
  c.max_length = 256;
  c.cache_tokens = 256;
  runtime::Engine engine(model(), c);
  std::map<RequestId, Answer> want, got;
  for (uint64_t i = 0; i < 3; ++i) {
    const auto ids = prompt(i == 2 ? 10 : 100, i);
    const auto o = sampled(i, i == 2 ? 4 : 90);
    want[engine.submit(ids, o)] = solo(ids, o);
  }
  while (engine.step([&](const TokenEvent& e) { record(got, e); })) {
  }
  for (const auto& [id, answer] : want) EXPECT_TRUE(got[id] == answer) << "request " << id << ": " << got[id].error;
  EXPECT_GT(engine.stats().preempted, 0);
  EXPECT_EQ(engine.pool().free_pages(), 4);
}

TEST_P(Exact, APoolTooSmallForAllServesThemInTurnAndEndsWithEveryPageFree) {
  runtime::EngineConfig c = config(3, 256);
  c.max_length = 256;
  c.cache_tokens = 320;  // one full request and a bit
  runtime::Engine engine(model(), c);
  std::map<RequestId, Answer> got, want;
  for (uint64_t i = 0; i < 5; ++i) {
    const auto ids = prompt(static_cast<int64_t>(100 + 20 * i), i);
    want[engine.submit(ids, sampled(i, 8))] = solo(ids, sampled(i, 8));
  }
  while (engine.step([&](const TokenEvent& e) { record(got, e); })) {
  }
  for (const auto& [id, answer] : want) {
    EXPECT_EQ(got[id].error, "") << "request " << id;
    EXPECT_TRUE(got[id] == answer) << "request " << id;
  }
  EXPECT_EQ(engine.pool().free_slots(), 3);
  EXPECT_EQ(engine.pool().free_pages(), 5);
}

TEST_P(Exact, RequestsThatCannotBeServedAreRefusedByName) {
  runtime::Engine engine(model(), config(1, 64));
  const auto refused = [&](std::vector<int32_t> ids, const runtime::RequestOptions& o) {
    try {
      engine.submit(std::move(ids), o);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(refused({}, sampled(1)), "prompt: no tokens");
  EXPECT_EQ(refused({1, 512}, sampled(1)), "prompt: token 512 at 1, expected 0..511");
  EXPECT_EQ(refused({-1}, sampled(1)), "prompt: token -1 at 0, expected 0..511");
  EXPECT_EQ(refused(prompt(512, 1), sampled(1)), "prompt: 512 tokens, the context holds 512");
  runtime::RequestOptions o = sampled(1);
  o.sampling.top_p = 1.5f;
  EXPECT_THAT(refused({1}, o), testing::HasSubstr("top_p"));
  o = sampled(1);
  o.bias = {{99999, 1.0f}};
  EXPECT_EQ(refused({1}, o), "logit_bias: token 99999, expected 0..511");
  o = sampled(1);
  o.stop_ids = {512};
  EXPECT_EQ(refused({1}, o), "stop_ids: token 512, expected 0..511");
  EXPECT_FALSE(engine.step([](const TokenEvent&) {}));
}

}  // namespace
}  // namespace kdelta::test
