// Prefix reuse in exact mode: a warm answer is the cold one to the bit, and what is reused is what can be (cases C1,
// C3, G1 for their whole kinds).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kdelta/core/error.h"
#include "tests/e2e/crowd.h"

namespace kdelta::test {
namespace {

using runtime::Engine;
using runtime::EngineConfig;
using runtime::RequestId;
using runtime::ReuseLimit;

using Ids = std::vector<int32_t>;

Ids joined(Ids a, const Ids& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class Prefix : public testing::TestWithParam<std::string> {
 protected:
  Prefix() : loaded_(load_placed(GetParam())) {}
  const Model& model() const { return *loaded_.model; }
  EngineConfig config(int64_t snapshots = 16) const {
    EngineConfig c = engine_config(DType::bf16);
    c.options.threads = 1;  // ThreadsDoNotChangeAnAnswer is proven in test_exact
    c.max_sequences = 2;
    c.token_budget = 512;
    c.max_length = 2048;
    c.cache_tokens = 8192;
    c.prefix_snapshots = snapshots;
    return c;
  }
  // One request through a running engine, compared with the same one alone; what it reused.
  runtime::Reuse ask(Engine& engine, const Ids& ids, uint64_t seed = 1, int64_t tokens = 6) const {
    Crowd crowd(engine);
    const RequestId id = crowd.submit(ids, sampled(seed, tokens));
    runtime::Reuse reuse;
    engine.pool().poison_free();
    while (crowd.step()) {
      engine.pool().poison_free();
      if (engine.find(id) != nullptr) reuse = engine.find(id)->reuse;
    }
    EXPECT_TRUE(crowd[id] == alone(model(), config(), ids, sampled(seed, tokens))) << ids.size() << " tokens";
    return reuse;
  }
  LoadedModel loaded_;
};

INSTANTIATE_TEST_SUITE_P(Models, Prefix, testing::Values("tests/golden/k3_a", "tests/golden/linear_a"),
                         [](const auto& kd) { return kd.param.substr(kd.param.rfind('/') + 1); });

// Case C1: the same prompt twice, one token more, a shared part; free memory full of NaN throughout.
TEST_P(Prefix, WarmEqualsColdAndReusesUpToTheLastUnit) {
  Engine engine(model(), config());
  const Ids ids = random_prompt(401, 1);
  EXPECT_EQ(ask(engine, ids).tokens, 0);
  const auto again = ask(engine, ids, 2);
  EXPECT_EQ(again.tokens, 384);
  EXPECT_EQ(again.limit, ReuseLimit::none);
  EXPECT_EQ(ask(engine, joined(ids, {7})).tokens, 384);
  EXPECT_EQ(ask(engine, joined(Ids(ids.begin(), ids.begin() + 384), random_prompt(50, 2))).tokens, 384);
  EXPECT_EQ(engine.prefix_stats().hits, 3);
  EXPECT_EQ(engine.prefix_stats().hit_tokens, 3 * 384);
}

// Case C3: a turn more, an edited word, a strict prefix, an inserted block, the last answer again.
TEST_P(Prefix, ConversationsReuseUpToTheLastSnapshotBeforeTheFirstDifference) {
  Engine engine(model(), config());
  const Ids first = random_prompt(700, 1);
  ask(engine, first);
  const Ids turn = joined(first, random_prompt(90, 2));
  EXPECT_EQ(ask(engine, turn).tokens, 640) << "append-only reuses nearly everything";
  EXPECT_EQ(ask(engine, turn, 9).tokens, 768) << "the last answer again";
  Ids edited = turn;
  edited[300] = (edited[300] + 1) % 500;
  const auto reuse = ask(engine, edited);
  EXPECT_EQ(reuse.tokens, 256);
  EXPECT_EQ(reuse.limit, ReuseLimit::difference);
  EXPECT_EQ(ask(engine, Ids(turn.begin(), turn.begin() + 100)).tokens, 0) << "no state was kept before 256";
  EXPECT_EQ(ask(engine, Ids(turn.begin(), turn.begin() + 600)).tokens, 512);
  Ids inserted(turn.begin(), turn.begin() + 550);
  inserted = joined(joined(inserted, random_prompt(64, 3)), Ids(turn.begin() + 550, turn.end()));
  EXPECT_EQ(ask(engine, inserted).tokens, 512);
}

// Case G1: requests that part at a point nobody foresaw. The second recomputes less than one interval of the common
// part, and leaves a snapshot where it parted, so that the third recomputes none.
TEST_P(Prefix, AFamilyOfRequestsPrefillsLittleMoreThanItsOwnParts) {
  Engine engine(model(), config());
  const Ids common = random_prompt(600, 1);
  ask(engine, joined(common, random_prompt(300, 10)));
  const auto second = ask(engine, joined(common, random_prompt(300, 11)));
  EXPECT_EQ(second.tokens, 512);
  EXPECT_EQ(second.limit, ReuseLimit::no_snapshot);
  EXPECT_EQ(second.matched, 576);
  const auto third = ask(engine, joined(common, random_prompt(300, 12)));
  EXPECT_EQ(third.tokens, 576);
  EXPECT_EQ(third.limit, ReuseLimit::difference);
  EXPECT_EQ(engine.prefix_stats().lost_tokens, 64);
}

TEST_P(Prefix, AReuseThatCannotHappenSaysWhy) {
  Engine off(model(), config(0));
  EXPECT_EQ(ask(off, random_prompt(100, 1)).limit, ReuseLimit::off);
  Engine engine(model(), config());
  EXPECT_EQ(ask(engine, random_prompt(64, 1)).limit, ReuseLimit::too_short);
  EXPECT_EQ(ask(engine, random_prompt(130, 2)).limit, ReuseLimit::unknown);
  Crowd crowd(engine);
  const RequestId waits = crowd.submit(random_prompt(130, 2), sampled(1, 4));
  EXPECT_EQ(engine.find(waits)->reuse.limit, ReuseLimit::waiting);
  crowd.step();
  EXPECT_EQ(engine.find(waits)->reuse.limit, ReuseLimit::none);
  const RequestId moved = engine.import_state(engine.export_state(waits));
  EXPECT_EQ(engine.find(moved)->reuse.limit, ReuseLimit::own_state);
  crowd.run();
}

// Three arrive at once, two of them behind prefixes. The first fits only when both prefixes may be evicted; then the
// others start without theirs, and say that they were there.
TEST_P(Prefix, APrefixThatIsWithheldForWantOfPagesSaysSo) {
  EngineConfig c = config(8);
  c.max_sequences = 3;
  c.max_length = 704;
  c.cache_tokens = 1280;
  Engine engine(model(), c);
  const Ids a = random_prompt(256, 1), b = random_prompt(512, 2);
  ask(engine, joined(a, {1}));
  ask(engine, joined(b, {1}));
  ASSERT_EQ(engine.pool().free_pages(), 20 - 12);
  Crowd crowd(engine);
  const Ids first = random_prompt(640, 3), second = joined(a, random_prompt(4, 4)), third = joined(b, {7, 8});
  std::map<RequestId, Answer> want;
  for (const Ids& ids : {first, second, third})
    want[crowd.submit(ids, sampled(1))] = alone(model(), c, ids, sampled(1));
  engine.explain(true);
  crowd.step();
  EXPECT_THAT(engine.explanation(), testing::HasSubstr("request 1: starts behind 0 tokens of earlier prompts; pages "
                                                       "were so scarce that the request started without a prefix"));
  const RequestId id = std::next(want.begin())->first;
  EXPECT_EQ(engine.find(id)->reuse.limit, ReuseLimit::withheld);
  EXPECT_EQ(engine.find(id)->reuse.matched, 256);
  EXPECT_EQ(engine.prefix_stats().lost_tokens, 256 + 512);
  crowd.run();
  for (const auto& [request, answer] : want) EXPECT_TRUE(crowd[request] == answer) << "request " << request;
}

// An image of a prefix, into an engine that never saw the prompt: what starts behind it has the bits of a cold run.
TEST_P(Prefix, AnImportedPrefixServesAsIfItHadBeenComputedHere) {
  Engine from(model(), config());
  const Ids ids = random_prompt(401, 1), next = joined(ids, random_prompt(30, 2));
  ask(from, ids);
  const runtime::StateImage image = from.export_prefix(next);
  EXPECT_EQ(image.computed, 384);
  EngineConfig c = config(2);
  c.drafts = 3;
  Engine engine(model(), c);
  engine.pool().poison_free();
  EXPECT_TRUE(engine.import_prefix(runtime::join_state(runtime::split_state(image, 2))));
  EXPECT_EQ(ask(engine, next).tokens, 384);
  EXPECT_EQ(engine.stats().prefill_tokens, 431 - 384);
  // All pages held by one that runs: no place, and nothing is lost by asking.
  c.max_length = c.cache_tokens = 448;
  Engine full(model(), c);
  Crowd crowd(full);
  const RequestId id = crowd.submit(random_prompt(400, 7), sampled(1, 40));
  crowd.step();
  EXPECT_FALSE(full.import_prefix(image));
  crowd.run();
  EXPECT_TRUE(crowd[id] == alone(model(), c, random_prompt(400, 7), sampled(1, 40)));
  full.prefixes().clear();
  EXPECT_EQ(full.pool().free_pages(), 7);
  EXPECT_EQ(full.pool().free_slots(), 2 + 2);
}

// Several at once on the same prefix, while others come and go: nobody writes a page that two own.
TEST_P(Prefix, RequestsThatShareAPrefixAtTheSameTimeAnswerAsAlone) {
  for (const int64_t drafts : {0, 4}) {
    EngineConfig c = config();
    c.max_sequences = 6;
    c.drafts = drafts;
    Engine engine(model(), c);
    Crowd crowd(engine);
    std::map<RequestId, Answer> want;
    const Ids common = random_prompt(320, 1);
    for (uint64_t i = 0; i < 14; ++i) {
      const Ids ids = joined(common, random_prompt(static_cast<int64_t>(1 + 13 * i), 20 + i));
      want[crowd.submit(ids, sampled(i, 20))] = alone(model(), c, ids, sampled(i, 20));
      crowd.step();
    }
    while (crowd.step()) engine.pool().poison_free();
    for (const auto& [id, answer] : want) EXPECT_TRUE(crowd[id] == answer) << "request " << id;
    EXPECT_GT(engine.prefix_stats().hits, 5);
    engine.prefixes().clear();
    EXPECT_EQ(engine.pool().free_pages(), 8192 / 64);
    EXPECT_EQ(engine.pool().free_slots(), 6 + 16);
  }
}

// Requests that start together and begin alike: the common part is computed once, also where their ends differ in
// length, and an answer is still the one alone. Without a leader that finishes: the next one takes its place.
TEST_P(Prefix, RequestsThatStartTogetherComputeTheirCommonBeginningOnce) {
  // On a device nobody waits for less than a step costs.
  const int64_t shared = test_device().kind == DeviceKind::cpu ? 320 : 640;
  for (const int64_t budget : {128, 512}) {
    EngineConfig c = config();
    c.max_sequences = 6;
    c.token_budget = budget;
    Engine engine(model(), c);
    Crowd crowd(engine);
    std::map<RequestId, Answer> want;
    const Ids common = random_prompt(shared + 10, 1);
    int64_t own = 0;
    for (uint64_t i = 0; i < 6; ++i) {
      const Ids ids = joined(common, random_prompt(static_cast<int64_t>(1 + 30 * i), 20 + i));
      want[crowd.submit(ids, sampled(i, 5))] = alone(model(), c, ids, sampled(i, 5));
      own += std::ssize(ids) - shared;
    }
    engine.explain(true);
    crowd.step();
    EXPECT_THAT(engine.explanation(),
                testing::HasSubstr(str("request 5: waits for tokens 0..", shared - 1, ", which request 0 computes")));
    while (crowd.step()) engine.pool().poison_free();
    for (const auto& [id, answer] : want) EXPECT_TRUE(crowd[id] == answer) << "request " << id;
    EXPECT_EQ(engine.stats().prefill_tokens, shared + own);
    EXPECT_EQ(engine.stats().followed, 5);
  }
}

TEST_P(Prefix, WhoWaitsForOneThatIsCancelledOrFailsIsLedByTheNext) {
  class Bomb final : public TensorProbe {
   public:
    void on_tensor(std::string_view, int, const AnyConstView&, Stream*) override {
      if (armed) fail(ErrorCode::failed, "injected");
    }
    bool armed = false;
  } bomb;
  EngineConfig c = config();
  c.max_sequences = 4;
  c.token_budget = 128;
  Engine engine(model(), c);
  engine.observe(nullptr, &bomb);
  Crowd crowd(engine);
  const Ids common = random_prompt(600, 1);
  std::vector<RequestId> ids;
  for (int32_t i = 0; i < 4; ++i) ids.push_back(crowd.submit(joined(common, {i, 7}), sampled(1)));
  crowd.step();
  engine.finish(ids[0], runtime::FinishReason::cancelled);
  crowd.step();
  bomb.armed = true;
  crowd.step();
  bomb.armed = false;
  crowd.run();
  EXPECT_EQ(crowd[ids[1]].error, "injected");
  for (const int32_t i : {2, 3})
    EXPECT_TRUE(crowd[ids[static_cast<size_t>(i)]] == alone(model(), c, joined(common, {i, 7}), sampled(1))) << i;
  EXPECT_EQ(engine.stats().followed, 1);
}

// Case C7's end to end: a pool that is full of old prefixes serves the same prompts pass after pass.
TEST_P(Prefix, AFullPoolEvictsOldPrefixesAndPassesAgree) {
  EngineConfig c = config(3);
  c.max_length = 512;
  c.cache_tokens = 640;
  Engine engine(model(), c);
  for (int pass = 0; pass < 3; ++pass)
    for (uint64_t i = 0; i < 6; ++i) ask(engine, random_prompt(static_cast<int64_t>(60 + 70 * i), i), i);
  EXPECT_GT(engine.prefix_stats().evicted, 0);
  engine.prefixes().clear();
  EXPECT_EQ(engine.pool().free_pages(), 10);
  EXPECT_EQ(engine.pool().free_slots(), 2 + 3);
}

// A prefill that fails has written nothing that others may find (case C2: a fault stays inside its own request).
TEST_P(Prefix, WhatAFailedRequestWroteIsNeverFound) {
  class Bomb final : public TensorProbe {
   public:
    void on_tensor(std::string_view, int, const AnyConstView&, Stream*) override {
      if (armed) fail(ErrorCode::failed, "injected");
    }
    bool armed = false;
  } bomb;
  EngineConfig c = config();
  c.token_budget = 128;
  Engine engine(model(), c);
  engine.observe(nullptr, &bomb);
  Crowd crowd(engine);
  const Ids ids = random_prompt(401, 1);
  const RequestId id = crowd.submit(ids, sampled(1));
  crowd.step(), crowd.step();
  bomb.armed = true;
  crowd.step();
  bomb.armed = false;
  crowd.run();
  EXPECT_EQ(crowd[id].error, "injected");
  EXPECT_EQ(engine.prefix_stats().published, 0);
  EXPECT_EQ(ask(engine, ids).tokens, 0);
  EXPECT_EQ(ask(engine, ids).tokens, 384);
}

// A prefix that is offered to a later arrival must not hold back the pages that the first one needs.
TEST_P(Prefix, AnOfferToALaterArrivalDoesNotBlockTheFirst) {
  EngineConfig c = config(8);
  c.max_length = c.cache_tokens = 512;
  Engine engine(model(), c);
  const Ids common = random_prompt(300, 1), large = random_prompt(450, 2);
  ask(engine, common);
  Crowd crowd(engine);
  const RequestId first = crowd.submit(large, sampled(1, 6)), second = crowd.submit(common, sampled(2, 6));
  crowd.run();
  EXPECT_TRUE(crowd[first] == alone(model(), c, large, sampled(1, 6)));
  EXPECT_TRUE(crowd[second] == alone(model(), c, common, sampled(2, 6)));
}

// Nor one that runs already and has to grow.
TEST_P(Prefix, AnOfferDoesNotBlockOneThatRuns) {
  EngineConfig c = config(8);
  c.max_length = c.cache_tokens = 512;
  c.token_budget = 64;
  Engine engine(model(), c);
  const Ids common = random_prompt(300, 1), large = random_prompt(450, 2);
  ask(engine, common);
  Crowd crowd(engine);
  const RequestId first = crowd.submit(large, sampled(1, 6));
  crowd.step();
  const RequestId second = crowd.submit(common, sampled(2, 6));
  crowd.run();
  EXPECT_TRUE(crowd[first] == alone(model(), c, large, sampled(1, 6)));
  EXPECT_TRUE(crowd[second] == alone(model(), c, common, sampled(2, 6)));
}

// Nor the ones that a state which comes back needs, and which needs no offer itself.
TEST_P(Prefix, AnOfferDoesNotBlockAStateThatComesBack) {
  EngineConfig c = config(8);
  c.max_length = c.cache_tokens = 512;
  Engine engine(model(), c), other(model(), c);
  const Ids common = random_prompt(300, 1), large = random_prompt(450, 2);
  Crowd before(other);
  const RequestId leaving = before.submit(large, sampled(1, 6));
  before.step();
  const size_t said = before[leaving].tokens.size();
  ask(engine, common);
  Crowd crowd(engine);
  const RequestId first = engine.import_state(other.export_state(leaving)),
                  second = crowd.submit(common, sampled(2, 6));
  crowd.run();
  const Answer whole = alone(model(), c, large, sampled(1, 6));
  EXPECT_EQ(crowd[first].tokens, Ids(whole.tokens.begin() + static_cast<int64_t>(said), whole.tokens.end()));
  EXPECT_TRUE(crowd[second] == alone(model(), c, common, sampled(2, 6)));
}

// Want of pages evicts prefixes before it sends anybody back.
TEST_P(Prefix, PrefixesGiveWayBeforeRequestsDo) {
  EngineConfig c = config(8);
  c.max_length = 512;
  c.cache_tokens = 1024;
  Engine engine(model(), c);
  for (uint64_t i = 0; i < 4; ++i) ask(engine, random_prompt(250, i), i);
  Crowd crowd(engine);
  std::map<RequestId, Answer> want;
  for (uint64_t i = 0; i < 2; ++i) {
    const Ids ids = random_prompt(440, 50 + i);
    want[crowd.submit(ids, sampled(i, 60))] = alone(model(), c, ids, sampled(i, 60));
  }
  crowd.run();
  for (const auto& [id, answer] : want) EXPECT_TRUE(crowd[id] == answer);
  EXPECT_EQ(engine.stats().preempted, 0);
  EXPECT_GT(engine.prefix_stats().evicted, 0);
}

}  // namespace
}  // namespace kdelta::test
