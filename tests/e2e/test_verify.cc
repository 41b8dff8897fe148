// Verification and rollback in exact mode: drafts, good or bad, never change an answer or a state by a bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>

#include "kdelta/core/error.h"
#include "tests/e2e/crowd.h"

namespace kdelta::test {
namespace {

using runtime::DraftQuery;
using runtime::Engine;
using runtime::EngineConfig;
using runtime::RequestId;

// Drafts by script: of request i, the answer it will give, right for the first `right` tokens and wrong behind them.
class Script final : public runtime::Drafter {
 public:
  struct Step {
    int64_t drafts = 0, right = 0;
  };
  std::map<RequestId, std::vector<int32_t>> future;
  std::function<Step(const runtime::Request&)> next;
  int64_t asked = 0;

  void propose(std::span<DraftQuery> queries) override {
    for (DraftQuery& q : queries) {
      ++asked;
      const auto it = future.find(q.request->id);
      if (it == future.end()) continue;
      const Step s = next(*q.request);
      for (int64_t i = 0; i < std::min(s.drafts, q.most); ++i) {
        const auto at = static_cast<size_t>(q.request->generated() + i);
        const int32_t truth = at < it->second.size() ? it->second[at] : 0;
        q.tokens.push_back(i < s.right ? truth : (truth + 1 + static_cast<int32_t>(i)) % 500);
      }
    }
  }
};

class Verify : public testing::TestWithParam<std::tuple<std::string, DraftStates>> {
 protected:
  Verify() : loaded_(load_placed(std::get<0>(GetParam()))) {}
  const Model& model() const { return *loaded_.model; }
  EngineConfig config(int64_t sequences, int64_t drafts) const {
    EngineConfig c = engine_config(DType::bf16);
    c.options.threads = 1;  // ThreadsDoNotChangeAnAnswer is proven in test_exact
    c.max_sequences = sequences;
    c.token_budget = 256;
    c.max_length = 512;
    c.drafts = drafts;
    c.draft_states = std::get<1>(GetParam());
    return c;
  }
  // Runs `ids` with the script and returns what came out; the engine's counts in `stats`.
  Answer scripted(const EngineConfig& c, const std::vector<int32_t>& ids, const runtime::RequestOptions& o,
                  const std::vector<int32_t>& future, std::function<Script::Step(const runtime::Request&)> next,
                  runtime::EngineStats* stats = nullptr) const {
    auto script = std::make_unique<Script>();
    Script& s = *script;
    Engine engine(model(), c, std::move(script));
    Crowd crowd(engine);
    const RequestId id = crowd.submit(ids, o);
    s.future[id] = future;
    s.next = std::move(next);
    crowd.run();
    if (stats != nullptr) *stats = engine.stats();
    const bool slots = c.draft_states == DraftStates::slots;
    EXPECT_EQ(engine.pool().free_draft_slots(), slots ? c.max_sequences * c.drafts : 0);
    return crowd[id];
  }
  LoadedModel loaded_;
};

INSTANTIATE_TEST_SUITE_P(Models, Verify,
                         testing::Combine(testing::Values("tests/golden/k3_a", "tests/golden/linear_a"),
                                          testing::Values(DraftStates::slots, DraftStates::records)),
                         [](const auto& kd) {
                           const std::string& model = std::get<0>(kd.param);
                           return model.substr(model.rfind('/') + 1) +
                                  (std::get<1>(kd.param) == DraftStates::slots ? "_slots" : "_records");
                         });

// Case C5: every pattern of acceptance, lengths that shrink and grow, steps without drafts in between.
TEST_P(Verify, EveryPatternOfAcceptanceGivesTheAnswerOfPlainDecoding) {
  for (const bool draws : {false, true}) {
    const auto ids = random_prompt(37, 4);
    const auto o = draws ? sampled(6, 60) : greedy(60);
    const Answer want = alone(model(), config(1, 0), ids, o);
    for (const int64_t drafts : {1, 2, 4, 7, 8, 16}) {
      std::mt19937_64 rng(static_cast<uint64_t>(drafts));
      runtime::EngineStats stats;
      const Answer got = scripted(
          config(1, drafts), ids, o, want.tokens,
          [&](const runtime::Request&) {
            const auto n = static_cast<int64_t>(rng() % static_cast<uint64_t>(drafts + 1));
            return Script::Step{n, static_cast<int64_t>(rng() % static_cast<uint64_t>(n + 1))};
          },
          &stats);
      EXPECT_TRUE(got == want) << drafts << " drafts, draws " << draws;
      EXPECT_GT(stats.accepted_drafts, 0);
      EXPECT_LT(stats.accepted_drafts, stats.drafts);
    }
  }
}

// Case C6: all drafts wrong, on every step. One token a step is certain, so the count of accepted is never 0.
TEST_P(Verify, ARequestWhoseDraftsAreAllRejectedAdvancesByOneTokenAStep) {
  const auto ids = random_prompt(20, 9);
  const Answer want = alone(model(), config(1, 0), ids, sampled(1, 30));
  runtime::EngineStats stats;
  const Answer got = scripted(
      config(1, 4), ids, sampled(1, 30), want.tokens,
      [](const runtime::Request&) {
        return Script::Step{4, 0};
      },
      &stats);
  EXPECT_TRUE(got == want);
  EXPECT_EQ(stats.accepted_drafts, 0);
  EXPECT_EQ(stats.steps, 30);
}

TEST_P(Verify, RightDraftsAreAllKeptAndNoneIsComputedBehindTheLastToken) {
  const auto ids = random_prompt(20, 9);
  const Answer want = alone(model(), config(1, 0), ids, greedy(31));
  runtime::EngineStats stats;
  const Answer got = scripted(
      config(1, 4), ids, greedy(31), want.tokens,
      [](const runtime::Request&) {
        return Script::Step{4, 4};
      },
      &stats);
  EXPECT_TRUE(got == want);
  EXPECT_EQ(stats.steps, 1 + 6);  // the prompt gives the first, then five tokens a step
  EXPECT_EQ(stats.drafts, stats.accepted_drafts);
  EXPECT_EQ(stats.decode_tokens, 30);
}

// A stop id among accepted drafts ends the answer there.
TEST_P(Verify, AnAcceptedStopIdEndsTheAnswer) {
  const auto ids = random_prompt(20, 9);
  auto o = greedy(31);
  o.stop_ids = {alone(model(), config(1, 0), ids, o).tokens[7]};
  const Answer want = alone(model(), config(1, 0), ids, o);
  ASSERT_EQ(want.finish, runtime::FinishReason::stop);
  const Answer got = scripted(config(1, 8), ids, o, want.tokens, [](const runtime::Request&) {
    return Script::Step{8, 8};
  });
  EXPECT_TRUE(got == want);
}

// A pool that rounds the state at every token: a verification rounds where single steps would have.
TEST_P(Verify, ABf16PoolGivesTheAnswerOfPlainDecoding) {
  const auto ids = random_prompt(37, 4);
  EngineConfig c = config(1, 7), plain = config(1, 0);
  c.recurrent = plain.recurrent = DType::bf16;
  const Answer want = alone(model(), plain, ids, sampled(6, 60));
  std::mt19937_64 rng(3);
  const Answer got = scripted(c, ids, sampled(6, 60), want.tokens, [&](const runtime::Request&) {
    return Script::Step{7, static_cast<int64_t>(rng() % 8)};
  });
  EXPECT_TRUE(got == want);
}

// Penalties and banned ids count drafts as output, as plain decoding would have counted those tokens.
TEST_P(Verify, PenaltiesAndMinimumLengthSeeDraftsAsOutput) {
  const auto ids = random_prompt(20, 9);
  auto o = sampled(3, 40);
  o.sampling.repetition_penalty = 1.3f;
  o.sampling.frequency_penalty = 0.4f;
  o.min_tokens = 25;
  const Answer free_run = alone(model(), config(1, 0), ids, o);
  o.stop_ids = {free_run.tokens[5], free_run.tokens[20], free_run.tokens[30]};
  const Answer want = alone(model(), config(1, 0), ids, o);
  std::mt19937_64 rng(5);
  const Answer got = scripted(config(1, 7), ids, o, want.tokens, [&](const runtime::Request&) {
    return Script::Step{7, static_cast<int64_t>(rng() % 8)};
  });
  EXPECT_TRUE(got == want);
}

// Requests that draft, that never draft and that prefill, in one batch; padded to buckets or not.
TEST_P(Verify, DraftsOfOneRequestDoNotTouchAnother) {
  for (const bool padded : {false, true}) {
    EngineConfig c = config(4, 4);
    if (padded) c.buckets = {{1, 1}, {2, 1}, {4, 1}, {2, 5}, {4, 5}};
    auto script = std::make_unique<Script>();
    Script& s = *script;
    Engine engine(model(), c, std::move(script));
    Crowd crowd(engine);
    std::map<RequestId, Answer> want;
    std::mt19937_64 rng(8);
    s.next = [&](const runtime::Request&) {
      const auto n = static_cast<int64_t>(rng() % 5);
      return Script::Step{n, static_cast<int64_t>(rng() % static_cast<uint64_t>(n + 1))};
    };
    const int64_t lengths[] = {10, 65, 1, 130, 64, 33, 200, 5};
    for (uint64_t i = 0; i < std::size(lengths); ++i) {
      const auto ids = random_prompt(lengths[i], i);
      const auto o = i % 3 == 0 ? greedy(25) : sampled(i, 25);
      const RequestId id = crowd.submit(ids, o);
      want[id] = alone(model(), config(1, 0), ids, o);
      if (i % 4 != 3) s.future[id] = want[id].tokens;
      if (i % 2 == 1) crowd.step();
    }
    while (crowd.step()) engine.pool().poison_free();
    for (const auto& [id, answer] : want) EXPECT_TRUE(crowd[id] == answer) << "request " << id << " padded " << padded;
    EXPECT_GT(engine.stats().accepted_drafts, 0);
  }
}

// The state itself: after every step of a drafted run, recurrent state and window are those of a plain run of as many
// tokens, to the bit. Looked at in a fork: the request itself goes on unsettled.
TEST_P(Verify, TheStateAfterAnyAcceptanceIsThatOfPlainDecoding) {
  const auto ids = random_prompt(21, 2);
  const Answer want = alone(model(), config(1, 0), ids, greedy(40));
  const auto forked = [](Engine& e, RequestId id) {
    const runtime::Request& r = *e.find(id);
    const int32_t fork = e.pool().take_slot();
    e.pool().settle(r.slots, r.accepted, fork);
    std::vector<char> bytes(static_cast<size_t>(e.pool().saved_bytes(r.computed)));
    e.pool().save(fork, r.pages, r.computed, bytes);
    e.pool().give_back_slot(fork);
    e.pool().poison_free();
    return bytes;
  };
  Engine plain(model(), config(2, 0));
  Crowd plain_crowd(plain);
  const RequestId plain_id = plain_crowd.submit(ids, greedy(40));
  std::map<int64_t, std::vector<char>> states;  // by tokens computed
  while (plain_crowd.step() && !plain.find(plain_id)->slots.empty())
    states[plain.find(plain_id)->computed] = forked(plain, plain_id);
  auto script = std::make_unique<Script>();
  Script& s = *script;
  Engine engine(model(), config(2, 4), std::move(script));
  Crowd crowd(engine);
  const RequestId id = crowd.submit(ids, greedy(40));
  s.future[id] = want.tokens;
  std::mt19937_64 rng(1);
  s.next = [&](const runtime::Request&) { return Script::Step{4, static_cast<int64_t>(rng() % 5)}; };
  std::set<int32_t> accepted;
  while (crowd.step() && !engine.find(id)->slots.empty()) {
    const runtime::Request& r = *engine.find(id);
    ASSERT_TRUE(states.contains(r.computed));
    ASSERT_TRUE(forked(engine, id) == states[r.computed])
        << "after " << r.computed << " tokens, accepted " << r.accepted;
    accepted.insert(r.accepted);
  }
  EXPECT_EQ(accepted, (std::set<int32_t>{1, 2, 3, 4, 5}));
  EXPECT_TRUE(crowd[id] == want);
}

// Settling a request between steps (before it is saved or forked) changes nothing either.
TEST_P(Verify, ASettledStateContinuesAlike) {
  const auto ids = random_prompt(21, 2);
  const Answer want = alone(model(), config(1, 0), ids, sampled(2, 40));
  auto script = std::make_unique<Script>();
  Script& s = *script;
  Engine engine(model(), config(1, 4), std::move(script));
  Crowd crowd(engine);
  const RequestId id = crowd.submit(ids, sampled(2, 40));
  s.future[id] = want.tokens;
  std::mt19937_64 rng(1);
  s.next = [&](const runtime::Request&) { return Script::Step{4, static_cast<int64_t>(rng() % 5)}; };
  while (crowd.step()) {
    auto* r = const_cast<runtime::Request*>(engine.find(id));
    if (r == nullptr || r->slots.empty()) continue;
    engine.pool().settle(r->slots, r->accepted);
    r->accepted = 1;
  }
  EXPECT_TRUE(crowd[id] == want);
}

// The lookup drafter on a text that repeats itself: the same answer in fewer steps.
TEST_P(Verify, LookupInTheTextSavesStepsAndChangesNothing) {
  auto ids = random_prompt(30, 3);
  const auto once = ids;
  for (int i = 0; i < 3; ++i) ids.insert(ids.end(), once.begin(), once.end());
  const Answer want = alone(model(), config(1, 0), ids, greedy(120));
  Engine engine(model(), config(1, 4));
  Crowd crowd(engine);
  const RequestId id = crowd.submit(ids, greedy(120));
  crowd.run();
  EXPECT_TRUE(crowd[id] == want);
  EXPECT_GT(engine.stats().drafts, 0);
}

TEST(Lookup, ProposesWhatFollowedTheLongestAndMostRecentRepetition) {
  const auto drafts = [](std::vector<int32_t> text, int64_t most, int64_t longest = 4, int64_t shortest = 2) {
    runtime::Request r;
    r.prompt = std::move(text);
    DraftQuery q{.request = &r, .most = most, .tokens = {}};
    runtime::make_lookup_drafter(longest, shortest)->propose({&q, 1});
    return q.tokens;
  };
  using Ints = std::vector<int32_t>;
  EXPECT_EQ(drafts({1, 2, 3, 4, 1, 2}, 2), (Ints{3, 4}));
  EXPECT_EQ(drafts({1, 2, 3, 4, 1, 2}, 9), (Ints{3, 4, 1, 2})) << "no further than the text goes";
  EXPECT_EQ(drafts({1, 2, 8, 1, 2, 9, 1, 2}, 1), (Ints{9})) << "the most recent of equals";
  EXPECT_EQ(drafts({7, 1, 2, 8, 5, 1, 2, 9, 7, 1, 2}, 1), (Ints{8})) << "the longest before the most recent";
  EXPECT_EQ(drafts({1, 2, 3, 4, 5, 2}, 3), Ints{}) << "one token alone is no repetition";
  EXPECT_EQ(drafts({1, 2, 3, 4, 5, 2}, 3, 4, 1), (Ints{3, 4, 5}));
  EXPECT_EQ(drafts({5, 5, 5, 5}, 3), (Ints{5})) << "the text's end follows the repetition before it";
  EXPECT_EQ(drafts({5}, 3), Ints{});
}

// Drafts do not bend the distribution: with the most likely token proposed on every step, tokens come as often as the
// model's probabilities say. Chi-square with 8 cells at most; 26.1 is passed by chance once in a thousand.
TEST_P(Verify, SampledTokensFollowTheModelsProbabilitiesWhateverIsDrafted) {
  class Favourite final : public runtime::Drafter {
   public:
    int32_t token = 0;
    void propose(std::span<DraftQuery> queries) override {
      for (DraftQuery& q : queries) q.tokens.assign(static_cast<size_t>(q.most), token);
    }
  };
  const auto ids = random_prompt(12, 1);
  auto o = sampled(0, 3);
  o.sampling.temperature = 1;
  o.sampling.top_k = 4;
  o.top_logprobs = 8;
  // Probabilities of the second token behind the most likely first one, from the logits of a plain run.
  auto first = greedy(1);
  const int32_t start = alone(model(), config(1, 0), ids, first).tokens[0];
  std::vector<int32_t> longer = ids;
  longer.push_back(start);
  EngineConfig scoring = config(1, 0);
  scoring.all_logits = true;
  const RunResult run = run_logits(model(), scoring, longer);
  const int64_t V = model().config().vocab_size;
  std::vector<std::pair<float, int32_t>> best;
  for (int64_t i = 0; i < V; ++i)
    best.emplace_back(run.logits[run.logits.size() - static_cast<size_t>(V - i)], static_cast<int32_t>(i));
  std::sort(best.rbegin(), best.rend());
  double sum = 0;
  std::map<int32_t, double> p;
  for (int i = 0; i < 4; ++i)
    sum += p[best[static_cast<size_t>(i)].second] = std::exp(best[static_cast<size_t>(i)].first - best[0].first);
  auto drafter = std::make_unique<Favourite>();
  drafter->token = best[0].second;
  EngineConfig c = config(8, 2);
  Engine engine(model(), c, std::move(drafter));
  std::map<RequestId, std::vector<int32_t>> got;
  for (uint64_t seed = 0; seed < 1500; ++seed) {
    o.sampling.seed = seed;
    engine.submit(ids, o);
  }
  while (engine.step([&](const runtime::TokenEvent& e) { got[e.id].push_back(e.token); })) {
  }
  std::map<int32_t, int> count;
  int total = 0;
  for (const auto& [id, tokens] : got)
    if (tokens[0] == start) ++count[tokens[1]], ++total;
  ASSERT_GT(total, 150);
  double chi = 0;
  for (const auto& [token, weight] : p) {
    const double expected = total * weight / sum;
    chi += (count[token] - expected) * (count[token] - expected) / expected;
  }
  EXPECT_LT(chi, 16.3) << total << " samples";  // 3 degrees of freedom, once in a thousand
  EXPECT_GT(engine.stats().accepted_drafts, 0);
}

// tiny-k3 and its draft: the program's own models, in the mode that users get.
class TinyDraft : public testing::Test {
 protected:
  TinyDraft() : target_(load_placed("models/tiny-k3")), draft_(load_placed("models/tiny-k3-draft")) {}
  EngineConfig config(int64_t sequences, int64_t drafts) const {
    EngineConfig c = engine_config(DType::bf16);
    c.options.threads = 1;  // ThreadsDoNotChangeAnAnswer is proven in test_exact
    c.max_sequences = sequences;
    c.token_budget = 256;
    c.max_length = 512;
    c.drafts = drafts;
    return c;
  }
  std::unique_ptr<runtime::Drafter> drafter(const EngineConfig& c, int64_t budget = 256) const {
    return runtime::make_model_drafter(*draft_.model,
                                       {.device = c.device,
                                        .max_sequences = c.max_sequences,
                                        .max_length = c.max_length,
                                        .drafts = c.drafts,
                                        .token_budget = budget},
                                       target_.model->config().vocab_size);
  }
  LoadedModel target_, draft_;
};

// Greedy and sampled, several at once, a prompt that takes the drafter several calls to catch up with.
TEST_F(TinyDraft, ADraftModelChangesNoAnswerAndSavesSteps) {
  const Model& model = *target_.model;
  for (const int64_t drafts : {1, 3, 6}) {
    const EngineConfig c = config(3, drafts);
    Engine engine(model, c, drafter(c, 64));
    Crowd crowd(engine);
    std::map<RequestId, Answer> want;
    for (uint64_t i = 0; i < 6; ++i) {
      const auto ids = random_prompt(static_cast<int64_t>(5 + 60 * i), i, 2000);
      const auto o = i % 2 == 0 ? greedy(40) : sampled(i, 40);
      want[crowd.submit(ids, o)] = alone(model, config(1, 0), ids, o);
    }
    crowd.run();
    int64_t tokens = 0;
    for (const auto& [id, answer] : want) {
      EXPECT_TRUE(crowd[id] == answer) << "request " << id << " drafts " << drafts;
      tokens += static_cast<int64_t>(answer.tokens.size());
    }
    EXPECT_GT(engine.stats().accepted_drafts, tokens / 10) << engine.stats().drafts << " drafts";
    EXPECT_EQ(engine.memory().drafter, drafter(c, 64)->bytes());
  }
}

// The drafter's own rollback: proposals depend on the certain tokens alone, not on what was drafted and rejected
// before.
TEST_F(TinyDraft, ProposalsDoNotDependOnEarlierRejectedDrafts) {
  const EngineConfig c = config(1, 4);
  ThreadPool threads(1);
  Options options;
  Exec ex;
  ex.threads = &threads;
  ex.options = &options;
  const auto text = random_prompt(40, 3, 2000);
  const auto proposal = [&](runtime::Drafter& d, int64_t known) {
    runtime::Request r;
    r.id = 7;
    r.options = greedy(100);
    r.prompt.assign(text.begin(), text.begin() + 10);
    r.output.assign(text.begin() + 10, text.begin() + known);
    DraftQuery q{.request = &r, .most = 4, .tokens = {}};
    d.propose({&q, 1});
    return q.tokens;
  };
  const auto experienced = drafter(c);
  experienced->attach(ex);
  for (const int64_t known : {11, 12, 16, 17, 22, 40}) {
    const auto fresh = drafter(c);
    fresh->attach(ex);
    const auto tokens = proposal(*experienced, known);
    EXPECT_EQ(tokens.size(), 4u);
    EXPECT_EQ(tokens, proposal(*fresh, known)) << known << " tokens";
  }
}

TEST_F(TinyDraft, ADraftOfAnotherVocabularyIsRefused) {
  try {
    runtime::make_model_drafter(*draft_.model, {.device = test_device()}, 512);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(std::string(e.what()), "draft model: a vocabulary of 2304 tokens, expected the target's 512");
  }
}

TEST_P(Verify, MoreDraftsThanThereAreColumnsAreRefusedByName) {
  const auto refused = [&](int64_t drafts) {
    try {
      Engine engine(model(), config(1, drafts));
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(refused(17), "drafts: 17, expected 0 to 16");
  EXPECT_EQ(refused(-1), "drafts: -1, expected 0 to 16");
  EXPECT_EQ(refused(16), "accepted");
}

}  // namespace
}  // namespace kdelta::test
