// What only an engine on a CUDA device has: recorded steps, weights that are copied, another processor to agree with.
#include <gtest/gtest.h>

#include <cmath>

#include "kdelta/api/engine.h"
#include "tests/e2e/crowd.h"

namespace kdelta::test {
namespace {

const char* kModels[] = {"tests/golden/k3_a", "tests/golden/linear_a", "models/tiny-k3"};

class CudaEngine : public testing::TestWithParam<const char*> {
 protected:
  CudaEngine() : device_(load_placed(GetParam())), host_(load_model(GetParam(), LoadFormat::checkpoint)) {}

  static runtime::EngineConfig on_host(runtime::EngineConfig c) {
    c.device = {};
    return c;
  }

  LoadedModel device_, host_;
};

std::string name_of(const testing::TestParamInfo<const char*>& info) {
  std::string name = info.param;
  name = name.substr(name.rfind('/') + 1);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Models, CudaEngine, testing::ValuesIn(kModels), name_of);

TEST_P(CudaEngine, Fp32TokensEqualTheProcessors) {
  for (const auto& [exact, length] :
       {std::pair<bool, int64_t>{true, 65}, {false, 1}, {false, 17}, {false, 64}, {false, 65}, {false, 200}}) {
    runtime::EngineConfig c = engine_config(DType::f32);
    c.options.exact = exact;
    const std::vector<int32_t> prompt = random_prompt(length, static_cast<uint64_t>(length));
    std::vector<float> ours, theirs;
    const std::vector<int32_t> got = run_greedy(*device_.model, c, prompt, 40, &ours),
                               want = run_greedy(*host_.model, on_host(c), prompt, 40, &theirs);
    EXPECT_EQ(got, want) << length;
    ASSERT_EQ(ours.size(), theirs.size());
    float worst = 0;
    for (size_t i = 0; i < ours.size(); ++i) worst = std::max(worst, std::fabs(ours[i] - theirs[i]));
    EXPECT_LT(worst, 1e-3f) << length;
  }
}

// Sampled, penalised, with log-probabilities: requests of one crowd in recorded steps answer as in steps run op by op.
TEST_P(CudaEngine, RecordedStepsGiveTheBitsOfStepsRunOpByOp) {
  for (const auto& [activation, states] : {std::pair(DType::f32, DraftStates::slots),
                                           {DType::bf16, DraftStates::slots},
                                           {DType::bf16, DraftStates::records}}) {
    runtime::EngineConfig c = engine_config(activation);
    c.options.exact = activation == DType::f32;
    c.max_sequences = 5;
    c.drafts = 2;
    c.draft_states = states;
    // Steps of the same padded shape, recorded or not.
    c.buckets = {{1, 1}, {2, 1}, {5, 1}, {1, 3}, {2, 3}, {5, 3}};
    class Watcher final : public OpObserver {
     public:
      void on_op(std::string_view, std::string_view, const Cost&) override { ++ops; }
      int64_t ops = 0;
    } watcher;
    std::vector<Answer> answers[2];
    for (const bool recorded : {true, false}) {
      runtime::Engine engine(*device_.model, c);
      if (!recorded) engine.observe(&watcher, nullptr);  // somebody who wants to see every op
      Crowd crowd(engine);
      std::vector<runtime::RequestId> ids;
      for (uint64_t i = 0; i < 9; ++i) {
        runtime::RequestOptions o = i % 2 == 0 ? greedy(20) : sampled(i, 20);
        o.sampling.repetition_penalty = 1.1f;
        ids.push_back(crowd.submit(random_prompt(3 + 41 * static_cast<int64_t>(i), i), o));
      }
      crowd.run();
      for (const auto id : ids) answers[recorded ? 1 : 0].push_back(crowd[id]);
    }
    EXPECT_GT(watcher.ops, 0);
    for (size_t i = 0; i < answers[0].size(); ++i) {
      EXPECT_TRUE(answers[0][i] == answers[1][i]) << "request " << i << answers[0][i].error << answers[1][i].error;
      EXPECT_FALSE(answers[0][i].tokens.empty());
    }
  }
}

// Two queues are one in order: same bits. In a recorded step they are a fork and a join for every layer that has
// something to put aside.
TEST_P(CudaEngine, WorkOnASecondQueueChangesNoBitAndIsJoinedInEveryLayer) {
  std::vector<Answer> answers[2];
  for (const int64_t rows : {0, 64}) {
    runtime::EngineConfig c = engine_config(DType::bf16);
    c.options.overlap_rows = rows;
    c.options.exact = false;
    c.max_sequences = 3;
    c.buckets = {{1, 1}, {3, 1}};
    runtime::Engine engine(*device_.model, c);
    Crowd crowd(engine);
    std::vector<runtime::RequestId> ids;
    for (uint64_t i = 0; i < 4; ++i)
      ids.push_back(crowd.submit(random_prompt(2 + 31 * static_cast<int64_t>(i), i), sampled(i, 20)));
    crowd.run();
    for (const auto id : ids) answers[rows > 0 ? 1 : 0].push_back(crowd[id]);

    const Graph& step = engine.recorded(0).graphs()[0];
    const std::vector<Graph::Edge> edges = step.edges();
    const size_t nodes = step.nodes().size();
    std::vector<int> out(nodes), in(nodes);
    for (const Graph::Edge& e : edges) ++out[static_cast<size_t>(e.from)], ++in[static_cast<size_t>(e.to)];
    const auto forks = std::count_if(out.begin(), out.end(), [](int n) { return n > 1; }),
               joins = std::count_if(in.begin(), in.end(), [](int n) { return n > 1; });
    int64_t layers = 0;
    for (int64_t l = 0; l < device_.config.layers(); ++l) {
      layers += device_.config.mixer[static_cast<size_t>(l)] == MixerKind::kda;
      layers += device_.config.is_moe(l) && device_.config.moe.shared > 0;
    }
    // An op of several kernels may overlap them by itself, so there can be more than the layers' own.
    EXPECT_GE(forks, rows == 0 ? 0 : layers);
    EXPECT_LE(forks, rows == 0 ? 0 : static_cast<int64_t>(nodes));
    EXPECT_EQ(joins, forks);
    EXPECT_EQ(std::count(out.begin(), out.end(), 0), 1) << "one tail";
  }
  for (size_t i = 0; i < answers[0].size(); ++i) EXPECT_TRUE(answers[0][i] == answers[1][i]) << "request " << i;
}

// Prompts among decode rows: the pieces between the mixers are recorded, the mixers run op by op with what the step
// has.
TEST_P(CudaEngine, MixedStepsInRecordedPiecesGiveTheBitsOfStepsRunOpByOp) {
  for (const bool exact : {false, true}) {
    runtime::EngineConfig c = engine_config(DType::bf16);
    c.options.exact = exact;
    c.max_sequences = 5;
    c.token_budget = 128;
    c.drafts = 2;
    c.buckets = {{5, 1}, {5, 3}, {.rows = 5, .mixed_tokens = 64}, {.rows = 5, .mixed_tokens = 128}};
    class Watcher final : public OpObserver {
     public:
      void on_op(std::string_view, std::string_view, const Cost&) override { ++ops; }
      int64_t ops = 0;
    } watcher;
    std::vector<Answer> answers[2];
    for (const bool recorded : {true, false}) {
      runtime::Engine engine(*device_.model, c);
      // One between any two mixers, one in front of the first and one behind the last.
      EXPECT_EQ(std::ssize(engine.recorded(2).graphs()), device_.config.layers() + 1);
      EXPECT_EQ(engine.recorded(0).graphs().size(), 1u) << "a step of decode rows has no break";
      if (!recorded) engine.observe(&watcher, nullptr);
      engine.pool().poison_free();
      Crowd crowd(engine);
      std::vector<runtime::RequestId> ids;
      // The first ones decode when the later ones, of several steps each, begin.
      for (uint64_t i = 0; i < 9; ++i)
        ids.push_back(
            crowd.submit(random_prompt(3 + 47 * static_cast<int64_t>(i), i), i % 2 == 0 ? greedy(20) : sampled(i, 20)));
      crowd.run();
      for (const auto id : ids) answers[recorded ? 1 : 0].push_back(crowd[id]);
    }
    EXPECT_GT(watcher.ops, 0);
    for (size_t i = 0; i < answers[0].size(); ++i) {
      EXPECT_TRUE(answers[0][i] == answers[1][i]) << "request " << i << answers[0][i].error << answers[1][i].error;
      EXPECT_FALSE(answers[0][i].tokens.empty());
    }
  }
}

TEST_P(CudaEngine, ASublayerThatIsNamedBreaksARecordingToo) {
  runtime::EngineConfig c = engine_config(DType::f32);
  c.max_sequences = 2;
  c.token_budget = 128;
  c.buckets = {{.rows = 2, .mixed_tokens = 128}};
  const std::vector<int32_t> prompt = random_prompt(150, 3);
  c.break_at = {device_.model->sublayers()[1].name};
  runtime::Engine engine(*device_.model, c);
  EXPECT_EQ(std::ssize(engine.recorded(0).graphs()), device_.config.layers() + 2);
  Crowd crowd(engine);
  const auto id = crowd.submit(prompt, greedy(20));
  crowd.run();
  EXPECT_EQ(crowd[id].tokens, run_greedy(*host_.model, on_host(engine_config(DType::f32)), prompt, 20));
}

// A step is enqueued, waited for once, and every decode step of a bucket is one launch, whatever the mix before it.
TEST_P(CudaEngine, PaddingAndCompanyOfABucketChangeNothing) {
  runtime::EngineConfig c = engine_config(DType::f32);
  c.max_sequences = 8;
  c.options.exact = false;
  for (const int64_t rows : {1, 4, 8}) c.buckets.push_back({rows, 1});
  runtime::Engine engine(*device_.model, c);
  engine.pool().poison_free();
  Crowd crowd(engine);
  std::vector<runtime::RequestId> ids;
  std::vector<std::vector<int32_t>> prompts;
  for (uint64_t i = 0; i < 7; ++i) {
    prompts.push_back(random_prompt(1 + 23 * static_cast<int64_t>(i), i));
    ids.push_back(crowd.submit(prompts.back(), greedy(10 + static_cast<int64_t>(i))));
  }
  while (crowd.step()) engine.pool().poison_free();
  for (size_t i = 0; i < ids.size(); ++i)
    EXPECT_EQ(crowd[ids[i]].tokens,
              run_greedy(*host_.model, on_host(engine_config(DType::f32)), prompts[i], 10 + static_cast<int64_t>(i)))
        << crowd[ids[i]].error;
}

TEST(CudaEngineDoor, AnswersThroughThePublicDoorEqualTheProcessors) {
  LoadOptions o{.model = "models/tiny-k3", .dtype = "fp32", .max_sequences = 4};
  o.max_length = 512;
  o.prefix_snapshots = 4;
  o.drafts = 3;
  Engine cpu = Engine::load(o);
  o.device = "cuda";
  int64_t reported = 0;
  o.progress = [&](int64_t done, int64_t) { reported = done; };
  std::vector<std::pair<int64_t, int64_t>> recorded;
  o.recording = [&](int64_t done, int64_t total) { recorded.emplace_back(done, total); };
  Engine cuda = Engine::load(o);
  EXPECT_GT(reported, 1 << 20) << "weights are uploaded with progress";
  // Steps of 1, 2 and 4 sequences, with drafts and without.
  ASSERT_EQ(recorded.size(), 6u);
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(recorded[i], (std::pair<int64_t, int64_t>(static_cast<int64_t>(i) + 1, 6)));
  EXPECT_NE(cuda.device_summary().find("cuda:0"), std::string::npos) << cuda.device_summary();
  EXPECT_EQ(cuda.memory().draft_states, "records") << "the lighter way, as on the processor";
  GenerateOptions g;
  g.temperature = 0;
  g.max_tokens = 60;
  const std::vector<int32_t> prompt = cpu.tokenize("Once upon a time there was a little girl who had a red ball. ");
  const Generation want = cpu.generate(prompt, g), got = cuda.generate(prompt, g);
  EXPECT_EQ(got.tokens, want.tokens);
  EXPECT_EQ(got.text, want.text);
  EXPECT_EQ(cuda.generate(prompt, g).tokens, want.tokens) << "behind a prefix that it kept";

  // Handed from one device to the other in the middle of the answer.
  g.max_tokens = 40;
  const Started begun = cuda.start(prompt, g, 7);
  ASSERT_FALSE(begun.state.empty());
  const Generation rest = cpu.resume(begun.state, {});
  std::vector<int32_t> joined = begun.generation.tokens;
  joined.insert(joined.end(), rest.tokens.begin(), rest.tokens.end());
  EXPECT_EQ(joined, cpu.generate(prompt, g).tokens);
}

TEST(CudaEngineDoor, ADraftModelGuessesOnTheDeviceAndChangesNoToken) {
  LoadOptions o{.model = "models/tiny-k3", .device = "cuda", .dtype = "fp32"};
  o.max_length = 256;
  Engine plain = Engine::load(o);
  o.drafts = 4;
  o.draft_model = "models/tiny-k3-draft";
  Engine drafted = Engine::load(o);
  GenerateOptions g;
  g.temperature = 0;
  g.max_tokens = 80;
  const std::vector<int32_t> prompt = plain.tokenize("And the king said to the people of the city, ");
  EXPECT_EQ(drafted.generate(prompt, g).tokens, plain.generate(prompt, g).tokens);
  EXPECT_GT(drafted.work().accepted_drafts, 10);
}

TEST(CudaEngineDoor, NewWeightsReachRecordedSteps) {
  LoadOptions o{.model = "models/tiny-k3", .dtype = "fp32"};
  o.max_length = 256;
  Engine cpu = Engine::load(o);
  o.device = "cuda";
  Engine cuda = Engine::load(o);
  GenerateOptions g;
  g.temperature = 0;
  g.max_tokens = 24;
  const std::vector<int32_t> prompt = {5, 6, 7, 8, 9};
  const std::vector<int32_t> before = cuda.generate(prompt, g).tokens;
  EXPECT_EQ(before, cpu.generate(prompt, g).tokens);
  // A norm before the head whose first half is gone: other answers on both, and the same.
  const auto width = static_cast<size_t>(std::stoll([&] {
    for (const ModelInfo::Tensor& t : cpu.info().tensor_list)
      if (t.name.ends_with("model.norm.weight")) return t.shape.substr(1);
    return std::string("0");
  }()));
  ASSERT_GT(width, 0u);
  std::string name;
  for (const ModelInfo::Tensor& t : cpu.info().tensor_list)
    if (t.name.ends_with("model.norm.weight")) name = t.name;
  const auto values = std::make_shared<std::vector<float>>(width, 1.0f);
  for (size_t i = 0; i < width / 2; ++i) (*values)[i] = 0;
  const WeightTensor tensor{
      name, "F32", {static_cast<int64_t>(width)}, std::shared_ptr<const void>(values, values->data())};
  cpu.reload({tensor});
  cuda.reload({tensor});
  const std::vector<int32_t> after = cuda.generate(prompt, g).tokens;
  EXPECT_NE(after, before);
  EXPECT_EQ(after, cpu.generate(prompt, g).tokens);
}

TEST(CudaEngineDoor, RandomWeightsAreThoseOfTheProcessor) {
  LoadOptions o{.model = "tests/golden/k3_a", .dtype = "fp32", .dummy_weights = true};
  o.max_length = 128;
  Engine cpu = Engine::load(o);
  o.device = "cuda";
  Engine cuda = Engine::load(o);
  GenerateOptions g;
  g.temperature = 0;
  g.max_tokens = 16;
  g.ignore_eos = true;
  EXPECT_EQ(cuda.generate({1, 2, 3}, g).tokens, cpu.generate({1, 2, 3}, g).tokens);
}

TEST(CudaEngineDoor, RecordedPiecesOfPromptsAnswerAsTheProcessor) {
  LoadOptions o{.model = "models/tiny-k3", .dtype = "fp32", .max_sequences = 3};
  o.max_length = 512;
  Engine cpu = Engine::load(o);
  o.device = "cuda";
  o.graph_tokens = 256;
  Engine cuda = Engine::load(o);
  GenerateOptions g;
  g.temperature = 0;
  g.max_tokens = 24;
  std::vector<int32_t> prompt;
  for (const int64_t length : {3, 64, 100, 300}) {
    for (int64_t i = std::ssize(prompt); i < length; ++i) prompt.push_back(static_cast<int32_t>(5 + i * 7 % 400));
    EXPECT_EQ(cuda.generate(prompt, g).tokens, cpu.generate(prompt, g).tokens) << length;
  }
}

TEST(CudaEngineDoor, AutoIsTheDeviceAsLongAsItHasRoomAndThenTheProcessor) {
  LoadOptions o{.model = "models/tiny-k3", .device = "auto", .dtype = "fp32"};
  o.max_length = 256;
  const auto notes = [](const Engine& e) {
    std::string all;
    for (const std::string& n : e.info().notes) all += n + "\n";
    return all;
  };
  GenerateOptions g;
  g.temperature = 0;
  g.max_tokens = 12;
  std::vector<int32_t> there;
  {
    Engine engine = Engine::load(o);
    EXPECT_NE(engine.device_summary().find("cuda:0"), std::string::npos) << engine.device_summary();
    EXPECT_EQ(notes(engine).find("device auto"), std::string::npos) << notes(engine);
    there = engine.generate({5, 6, 7}, g).tokens;
  }
  const Device device{DeviceKind::cuda, 0};
  // Somebody else takes all but a few megabytes, less than one recorded step is planned with.
  std::vector<Buffer> others;
  constexpr int64_t kLeft = 4 << 20;
  for (int64_t bytes = int64_t{1} << 36; bytes >= 1 << 20; bytes /= 2)
    while (device_free_bytes(device) >= bytes + kLeft) {
      try {
        others.emplace_back(device, bytes);
      } catch (const Error&) {  // no piece that large is left
        break;
      }
    }
  Engine engine = Engine::load(o);
  EXPECT_NE(engine.device_summary().find("cpu"), std::string::npos) << engine.device_summary();
  EXPECT_NE(notes(engine).find("are free on cuda:0"), std::string::npos) << notes(engine);
  EXPECT_EQ(engine.generate({5, 6, 7}, g).tokens, there);
}

TEST(CudaEngineDoor, WantOfDeviceMemoryIsToldBeforeAnyWork) {
  LoadOptions o{.model = "models/tiny-k3", .device = "cuda", .max_sequences = 20000};
  o.token_budget = 20000;
  o.max_length = 1 << 20;
  try {
    (void)Engine::load(o);
    FAIL() << "it loaded";
  } catch (const std::exception& e) {
    EXPECT_NE(std::string(e.what()).find("are free on cuda:0"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("max_sequences"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace kdelta::test
