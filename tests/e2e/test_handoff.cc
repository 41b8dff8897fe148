// A request that leaves one engine and goes on in another answers as if it had stayed, to the bit: the base of saving a
// conversation and of separating prefill from decode.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>

#include "kdelta/api/state_file.h"
#include "kdelta/core/error.h"
#include "tests/e2e/crowd.h"

namespace kdelta::test {
namespace {

using runtime::Engine;
using runtime::EngineConfig;
using runtime::RequestId;
using runtime::StateImage;

// Knows the answer, so that a step keeps several drafts and a state is in the middle of its columns and rows.
class Prophet final : public runtime::Drafter {
 public:
  std::vector<int32_t> answer;
  void propose(std::span<runtime::DraftQuery> queries) override {
    for (runtime::DraftQuery& q : queries)
      for (int64_t i = 0; i < q.most; ++i) {
        const auto at = static_cast<size_t>(q.request->generated() + i);
        // Right for two or three tokens, then wrong.
        q.tokens.push_back(i < 2 + q.request->generated() % 2 ? answer[at] : (answer[at] + 1) % 500);
      }
  }
};

class Handoff : public testing::TestWithParam<std::string> {
 protected:
  Handoff() : loaded_(load_placed(GetParam())) {}
  const Model& model() const { return *loaded_.model; }
  EngineConfig config(int64_t drafts = 0) const {
    EngineConfig c = engine_config(DType::bf16);
    c.options.threads = 1;
    c.max_sequences = 2;
    c.max_length = 512;
    c.token_budget = 128;
    c.drafts = drafts;
    c.model_id = 77;
    return c;
  }
  // The image of a request after `steps` steps, and what it had answered by then.
  StateImage image_after(int steps, const std::vector<int32_t>& ids, const runtime::RequestOptions& o,
                         Answer* so_far = nullptr) const {
    Engine engine(model(), config());
    Crowd crowd(engine);
    const RequestId id = crowd.submit(ids, o);
    for (int i = 0; i < steps; ++i) crowd.step();
    if (so_far != nullptr) *so_far = crowd[id];
    return engine.export_state(id);
  }
  // Goes on from an image; the whole answer.
  Answer finish(const StateImage& image, Answer so_far, int64_t drafts = 0) const {
    Engine engine(model(), config(drafts));
    engine.pool().poison_free();
    const RequestId id = engine.import_state(image);
    Crowd crowd(engine);
    while (crowd.step()) engine.pool().poison_free();
    // A prompt's last token behind a state is a decode row, and so is a lone one behind the grid.
    const auto prompt = static_cast<int64_t>(image.prompt.size());
    const int64_t left = std::max<int64_t>(0, prompt - image.computed) - (prompt % 64 == 1 ? 1 : 0);
    EXPECT_EQ(engine.stats().prefill_tokens, left) << "nothing is processed twice";
    const Answer& rest = crowd[id];
    so_far.tokens.insert(so_far.tokens.end(), rest.tokens.begin(), rest.tokens.end());
    so_far.logprobs.insert(so_far.logprobs.end(), rest.logprobs.begin(), rest.logprobs.end());
    so_far.finish = rest.finish;
    return so_far;
  }
  LoadedModel loaded_;
};

INSTANTIATE_TEST_SUITE_P(Models, Handoff, testing::Values("tests/golden/k3_a", "tests/golden/linear_a"),
                         [](const auto& kd) { return kd.param.substr(kd.param.rfind('/') + 1); });

// Before the first step, between pieces of the prompt, and at every token behind it; through bytes, both layouts of the
// window and any number of shards; into an engine of other columns.
TEST_P(Handoff, ARequestGoesOnInAnotherEngineFromAnyStep) {
  const auto ids = random_prompt(300, 1);
  for (const bool draws : {false, true}) {
    const auto o = draws ? sampled(3, 12) : greedy(12);
    const Answer want = alone(model(), config(), ids, o);
    for (int steps = 0; steps < 14; ++steps) {
      Answer so_far;
      const StateImage image = image_after(steps, ids, o, &so_far);
      EXPECT_TRUE(finish(image, so_far) == want) << "after " << steps << " steps";
      if (steps % 5 != 4) continue;
      const StateImage moved =
          decode_state(encode_state(runtime::with_layout(image, runtime::WindowLayout::channel_major)), "memory");
      EXPECT_TRUE(finish(moved, so_far, 4) == want);
      EXPECT_TRUE(finish(runtime::join_state(runtime::split_state(moved, 2)), so_far) == want);
    }
  }
}

// The state of a drafted run is settled before it leaves: the other side knows nothing of drafts.
TEST_P(Handoff, AStateInTheMiddleOfDraftsLeavesSettled) {
  const auto ids = random_prompt(30, 3);
  const Answer want = alone(model(), config(), ids, greedy(40));
  int32_t most = 0;
  for (int steps = 1; steps < 10; ++steps) {
    auto prophet = std::make_unique<Prophet>();
    prophet->answer = want.tokens;
    EngineConfig c = config(4);
    c.draft_states = steps % 3 == 0 ? DraftStates::slots : DraftStates::records;
    Engine engine(model(), c, std::move(prophet));
    Crowd crowd(engine);
    const RequestId id = crowd.submit(ids, greedy(40));
    for (int i = 0; i < steps; ++i) crowd.step();
    most = std::max(most, engine.find(id)->accepted);
    EXPECT_TRUE(finish(engine.export_state(id), crowd[id], steps % 2 == 0 ? 0 : 7) == want) << steps << " steps";
  }
  EXPECT_EQ(most, 4);
}

// The request that was copied goes on where it is, as does its copy: a fork.
TEST_P(Handoff, AnExportedRequestGoesOnAndBothAnswerAlike) {
  const auto ids = random_prompt(100, 1);
  const Answer want = alone(model(), config(), ids, sampled(5, 20));
  Engine engine(model(), config(4));
  Crowd crowd(engine);
  const RequestId id = crowd.submit(ids, sampled(5, 20));
  for (int i = 0; i < 6; ++i) crowd.step();
  const size_t before = crowd[id].tokens.size();
  const RequestId copy = engine.import_state(engine.export_state(id));
  crowd.run();
  EXPECT_TRUE(crowd[id] == want);
  EXPECT_TRUE(std::equal(want.tokens.begin() + static_cast<int64_t>(before), want.tokens.end(),
                         crowd[copy].tokens.begin(), crowd[copy].tokens.end()));
}

// Prefill in one process, decode in another.
TEST_P(Handoff, AnotherProcessGoesOnFromAFile) {
  if (test_device().kind != DeviceKind::cpu) GTEST_SKIP() << "a child that was forked cannot use the device";
  const std::string path = std::filesystem::temp_directory_path() / ("kdelta_handoff_" + std::to_string(getpid()));
  const auto ids = random_prompt(150, 1);
  const Answer want = alone(model(), config(), ids, sampled(5, 20));
  Answer so_far;
  write_state(path, image_after(2, ids, sampled(5, 20), &so_far));
  ASSERT_EQ(so_far.tokens.size(), 1u);
  const pid_t child = fork();
  if (child == 0) {
    const LoadedModel own = load_placed(GetParam());
    Engine engine(*own.model, config());
    const RequestId id = engine.import_state(read_state(path));
    Crowd crowd(engine);
    crowd.run();
    std::ofstream out(path + ".answer");
    for (const int32_t t : crowd[id].tokens) out << t << ' ';
    out.flush();
    _exit(0);
  }
  int status = 1;
  waitpid(child, &status, 0);
  ASSERT_EQ(status, 0);
  std::ifstream in(path + ".answer");
  for (int32_t t = 0; in >> t;) so_far.tokens.push_back(t);
  EXPECT_EQ(so_far.tokens, want.tokens);
  std::filesystem::remove(path);
  std::filesystem::remove(path + ".answer");
}

// The disk is full while one request is exported: its own answer and the others' stay what they are.
TEST_P(Handoff, AnExportThatTheDiskDoesNotTakeCostsNobodyAnything) {
  const std::string path = std::filesystem::temp_directory_path() / ("kdelta_full_" + std::to_string(getpid()));
  Engine engine(model(), config(4));
  Crowd crowd(engine);
  std::map<RequestId, Answer> want;
  for (uint64_t i = 0; i < 3; ++i) {
    const auto ids = random_prompt(static_cast<int64_t>(60 + 40 * i), i);
    want[crowd.submit(ids, sampled(i, 20))] = alone(model(), config(), ids, sampled(i, 20));
  }
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{1000, before.rlim_max};
  for (int step = 0; crowd.step(); ++step) {
    const RequestId id = want.begin()->first;
    if (engine.find(id) == nullptr || engine.find(id)->finish != runtime::FinishReason::none) continue;
    setrlimit(RLIMIT_FSIZE, &small);
    EXPECT_THROW(write_state(path, engine.export_state(id)), Error) << step;
    setrlimit(RLIMIT_FSIZE, &before);
    EXPECT_FALSE(std::filesystem::exists(path));
  }
  std::signal(SIGXFSZ, handler);
  for (const auto& [id, answer] : want) EXPECT_TRUE(crowd[id] == answer) << "request " << id << crowd[id].error;
}

TEST_P(Handoff, WhatDoesNotFitIsRefusedByName) {
  Engine engine(model(), config());
  const auto refused = [&](auto change) {
    StateImage image = image_after(4, random_prompt(100, 1), sampled(1));
    change(image);
    try {
      engine.import_state(image);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(refused([](StateImage&) {}), "accepted");
  EXPECT_EQ(refused([](StateImage& i) { i.model = 1; }), "state: of another model, number 1, this one is 77");
  EXPECT_EQ(refused([](StateImage& i) { i.grid = 1; }),
            "state: its prompt is cut at multiples of 1, this engine's prefill_grid is 64");
  EXPECT_EQ(refused([](StateImage& i) { i = runtime::split_state(i, 2)[1]; }),
            "state: shard 1 of 2, expected the whole");
  EXPECT_THAT(refused([](StateImage& i) { i.parts.pop_back(); }), testing::HasSubstr("parts, this model has"));
  EXPECT_THAT(refused([](StateImage& i) { i.parts[0].spec.dtype = DType::bf16; }),
              testing::HasSubstr("recurrent of layer 0: BF16"));
  // What cannot be a window, or is none here, is refused before anybody lays it out.
  EXPECT_THAT(refused([](StateImage& i) {
                i.parts[0].spec.rule = SlotRule::window;
                i.parts[0].layout = runtime::WindowLayout::channel_major;
              }),
              testing::HasSubstr(", window, expected recurrent of layer 0"));
  EXPECT_THAT(refused([](StateImage& i) {
                i.parts[1].spec.shape = {i.parts[1].spec.shape.numel()};
                i.parts[1].layout = runtime::WindowLayout::channel_major;
              }),
              testing::HasSubstr(", window, expected conv of layer 0"));
  EXPECT_THAT(refused([](StateImage& i) { i.computed = 104; }), testing::HasSubstr("104 tokens computed of"));
  EXPECT_THAT(refused([](StateImage& i) { i.output.assign(12, 1); }), testing::HasSubstr("the request ends at 12"));
  EXPECT_THAT(refused([](StateImage& i) { i.output = {9999}; }), testing::HasSubstr("token 9999"));
  EXPECT_THAT(refused([](StateImage& i) { i.prompt[0] = -1; }), testing::HasSubstr("prompt: token -1"));
  try {
    engine.export_state(12345);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(std::string(e.what()), "request: 12345 is not live");
  }
}

}  // namespace
}  // namespace kdelta::test
