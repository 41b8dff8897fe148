// Faults that users of other engines reported, each as the smallest input that would show it here. What other tests
// show for a whole kind already is listed beside them in docs/cases.md.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/e2e/crowd.h"

namespace kdelta::test {
namespace {

using runtime::Engine;
using runtime::EngineConfig;
using runtime::RequestId;
using Ids = std::vector<int32_t>;

Ids joined(Ids a, const Ids& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class Reports : public testing::TestWithParam<std::string> {
 protected:
  Reports() : loaded_(load_model(GetParam(), LoadFormat::checkpoint)) {}
  const Model& model() const { return *loaded_.model; }
  EngineConfig config(int64_t sequences) const {
    EngineConfig c = engine_config(DType::bf16);
    c.options.threads = 1;
    c.max_sequences = sequences;
    c.token_budget = 512;
    c.max_length = 2560;
    return c;
  }
  LoadedModel loaded_;
};

INSTANTIATE_TEST_SUITE_P(Models, Reports, testing::Values("tests/golden/k3_a", "tests/golden/linear_a"),
                         [](const auto& kd) { return kd.param.substr(kd.param.rfind('/') + 1); });

// B1: a decode batch padded to a captured shape, its slots not padded with it.
TEST_P(Reports, B1ThreeFiveAndSevenAtOnceInPaddedStepsAnswerAsAlone) {
  EngineConfig c = config(8);
  c.buckets = {{1, 1}, {2, 1}, {4, 1}, {8, 1}};
  Engine engine(model(), c);
  for (const uint64_t n : {3, 5, 7}) {
    Crowd crowd(engine);
    std::map<RequestId, Answer> want;
    for (uint64_t i = 0; i < n; ++i) {
      const Ids ids = random_prompt(static_cast<int64_t>(5 + 9 * i), 10 * n + i);
      want[crowd.submit(ids, greedy(9))] = alone(model(), c, ids, greedy(9));
    }
    while (crowd.step()) engine.pool().poison_free();
    for (const auto& [id, answer] : want) EXPECT_TRUE(crowd[id] == answer) << n << " at once, request " << id;
  }
}

// B2: a prompt of one token in a slot that another left, and a first chunk that the budget cuts to one token while
// others decode, taken for a step of decoding.
TEST_P(Reports, B2AFirstTokenStartsFromNothingWhoeverHadTheSlot) {
  EngineConfig c = config(1);
  Engine one(model(), c);
  Crowd crowd(one);
  crowd.submit(random_prompt(200, 1), greedy(6));
  crowd.run();
  const RequestId id = crowd.submit({42}, greedy(12));
  crowd.run();
  EXPECT_TRUE(crowd[id] == alone(model(), c, {42}, greedy(12)));

  c = config(8);
  c.prefill_grid = 1;
  c.token_budget = 8;  // seven decode, one token is left for the eighth
  Engine engine(model(), c);
  Crowd busy(engine);
  for (uint64_t i = 0; i < 7; ++i) busy.submit(random_prompt(4, i), greedy(60));
  for (int i = 0; i < 6; ++i) busy.step();
  engine.pool().poison_free();
  const Ids ids = random_prompt(5, 99);
  const RequestId eighth = busy.submit(ids, greedy(8));
  busy.step();
  ASSERT_EQ(engine.find(eighth)->computed, 1);
  busy.run();
  EngineConfig same_cuts = c;  // off the grid bits depend on the cut: alone, it is cut alike
  same_cuts.token_budget = 1;
  EXPECT_TRUE(busy[eighth] == alone(model(), same_cuts, ids, greedy(8)));
}

// C3: a client sends the last answer back without its last word.
TEST_P(Reports, C3ATrimmedAnswerContinuesAsAColdRun) {
  EngineConfig c = config(1);
  c.prefix_snapshots = 8;
  c.prefix_interval = 64;
  Engine engine(model(), c);
  Crowd crowd(engine);
  Ids turn = random_prompt(300, 1);
  for (int i = 0; i < 3; ++i) {
    const RequestId id = crowd.submit(turn, greedy(70));
    crowd.run();
    EXPECT_TRUE(crowd[id] == alone(model(), c, turn, greedy(70))) << "turn " << i;
    Ids answer = crowd[id].tokens;
    answer.resize(answer.size() - 4);
    turn = joined(joined(turn, answer), random_prompt(20, 50 + static_cast<uint64_t>(i)));
  }
  EXPECT_EQ(engine.prefix_stats().hits, 2);
  EXPECT_GE(engine.prefix_stats().hit_tokens, 256 + 320);
}

// C4: from the second piece on other states, or all before the last piece forgotten. In fp32 and off the grid, where
// every cut is legal: logits of every position and the states at the end.
TEST_P(Reports, C4PiecesOfAnySizeLeaveTheLogitsAndStatesOfOnePiece) {
  const Ids ids = random_prompt(3 * 64 + 5, 1);
  const EngineConfig c = engine_config(DType::f32);
  const RunResult whole = run_logits(model(), c, ids);
  const auto near = [](const std::vector<float>& got, const std::vector<float>& want) {
    double error = 0, size = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      error += std::pow(static_cast<double>(got[i]) - static_cast<double>(want[i]), 2);
      size += std::pow(static_cast<double>(want[i]), 2);
    }
    return got.size() == want.size() && size > 0 && std::sqrt(error / size) < 1e-4;
  };
  for (const int64_t piece : {1, 2, 3, 63, 64, 65, 128}) {
    const RunResult r = run_logits(model(), c, ids, piece);
    EXPECT_TRUE(near(r.logits, whole.logits)) << "pieces of " << piece;
    EXPECT_TRUE(near(r.state, whole.state)) << "pieces of " << piece;
    EXPECT_TRUE(near(r.conv, whole.conv)) << "pieces of " << piece;
  }
}

// C7: the first pass over a pool is right, the second and third read the tails of used pages.
TEST_P(Reports, C7TenPromptsFiveTimesOverAFewPagesAnswerAlike) {
  EngineConfig c = config(3);
  c.max_length = 192;
  c.cache_tokens = 256;
  c.page_tokens = 16;
  Engine engine(model(), c);
  std::vector<Answer> want;
  for (uint64_t i = 0; i < 10; ++i)
    want.push_back(alone(model(), c, random_prompt(static_cast<int64_t>(1 + 15 * i), i), greedy(17)));
  for (int pass = 0; pass < 5; ++pass) {
    Crowd crowd(engine);
    std::vector<RequestId> ids;
    for (uint64_t i = 0; i < 10; ++i)
      ids.push_back(crowd.submit(random_prompt(static_cast<int64_t>(1 + 15 * i), i), greedy(17)));
    crowd.run();
    for (size_t i = 0; i < 10; ++i) EXPECT_TRUE(crowd[ids[i]] == want[i]) << "pass " << pass << " prompt " << i;
  }
}

// G1: the only snapshot lies in the part that nobody shares. Counted in tokens of prefill.
TEST_P(Reports, G1AFamilyPrefillsItsCommonPartOnceAndWhatIsLostIsCounted) {
  EngineConfig c = config(1);
  c.prefix_snapshots = 24;
  const auto prefilled = [](Engine& engine, const Ids& ids) {
    const int64_t before = engine.stats().prefill_tokens;
    Crowd crowd(engine);
    crowd.submit(ids, greedy(2));
    crowd.run();
    return engine.stats().prefill_tokens - before;
  };
  {
    Engine engine(model(), c);
    const Ids common = random_prompt(560, 1);
    prefilled(engine, joined(common, random_prompt(1386, 2)));
    EXPECT_EQ(prefilled(engine, joined(common, random_prompt(1386, 3))), 1946 - 512);
    EXPECT_EQ(engine.prefix_stats().lost_tokens, 0) << "the last snapshot of the common part is the last unit of it";
  }
  for (const int64_t shared : {100, 500, 1500}) {
    Engine engine(model(), c);
    const Ids common = random_prompt(shared, 1);
    const int64_t units = shared / 64 * 64;
    // The second computes what lies behind the last regular snapshot once more, and leaves one where it parted.
    for (uint64_t i = 0; i < 16; ++i) {
      const int64_t n = prefilled(engine, joined(common, random_prompt(200, 10 + i)));
      const int64_t own = shared + 200 - units, again = i == 0 ? units : i == 1 ? engine.prefix_stats().lost_tokens : 0;
      EXPECT_EQ(n, own + again) << "request " << i << " behind " << shared;
      EXPECT_LT(i == 1 ? again : 0, c.prefix_interval) << "behind " << shared;
    }
  }
  Engine engine(model(), c);
  const Ids twice = random_prompt(1000, 5);
  prefilled(engine, twice);
  EXPECT_EQ(prefilled(engine, twice), 1000 - 960);
}

}  // namespace
}  // namespace kdelta::test
