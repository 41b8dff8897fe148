// The trained model against its PyTorch twin: perplexity, greedy tokens, chat answers, tokenizer, all through the
// public door.
#include <gtest/gtest.h>

#include <filesystem>

#include "kdelta/api/engine.h"
#include "kdelta/api/quantize.h"
#include "kdelta/io/json_reader.h"
#include "tests/e2e/support.h"

namespace kdelta::test {
namespace {

std::vector<int32_t> narrow(const std::vector<int64_t>& wide) {
  return {wide.begin(), wide.end()};
}

class Tiny : public testing::Test {
 protected:
  static Engine load(const std::string& dtype, bool all_logits) {
    LoadOptions o{.model = "models/tiny-k3", .dtype = dtype};
    o.threads = 2;
    o.max_length = 1024;
    o.all_logits = all_logits;
    return Engine::load(o);
  }
  static GenerateOptions greedy(int64_t tokens) {
    GenerateOptions o;
    o.temperature = 0;
    o.max_tokens = tokens;
    return o;
  }
  const JsonReader reference_ = JsonReader::open("tests/golden/tiny_k3/reference.json");
};

TEST_F(Tiny, PerplexityEqualsTheTwinsWithinHalfAPercentInBothDtypes) {
  const TensorFile file("tests/golden/tiny_k3/reference.safetensors");
  const auto want = reference_.get<JsonReader>("perplexity");
  for (const char* dtype : {"fp32", "bf16"}) {
    Engine engine = load(dtype, true);
    const Perplexity p = engine.perplexity(file.ints("heldout.tokens"), 512);
    EXPECT_EQ(p.tokens, want.get<int64_t>("scored"));
    EXPECT_NEAR(p.value() / want.get<double>("perplexity"), 1.0, std::string(dtype) == "fp32" ? 1e-4 : 5e-3) << dtype;
  }
}

// Measured with the default rule: 9.0767 against 9.0695.
TEST_F(Tiny, PerplexityOfMxfp8ProjectionsIsWithinOnePercent) {
  const TensorFile file("tests/golden/tiny_k3/reference.safetensors");
  std::string folder = testing::TempDir() + "kdelta_tiny_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  quantize({.model = "models/tiny-k3", .out = folder + "/mixed", .threads = 2});
  LoadOptions o{.model = folder + "/mixed", .threads = 2, .max_length = 1024, .all_logits = true};
  const double mixed = Engine::load(o).perplexity(file.ints("heldout.tokens"), 512).value();
  const double plain = load("bf16", true).perplexity(file.ints("heldout.tokens"), 512).value();
  EXPECT_NEAR(mixed / plain, 1.0, 0.01);
  EXPECT_NE(mixed, plain);
  std::filesystem::remove_all(folder);
}

TEST_F(Tiny, GreedyTokensInFp32EqualTheTwinsForSixtyFourTokensOnTenPrompts) {
  Engine engine = load("fp32", false);
  const auto runs = reference_.get<std::vector<JsonReader>>("greedy");
  ASSERT_EQ(runs.size(), 10u);
  for (const JsonReader& run : runs) {
    const auto ids = narrow(run.get<std::vector<int64_t>>("prompt_ids"));
    EXPECT_EQ(engine.tokenize(run.get<std::string>("prompt")), ids);
    GenerateOptions o = greedy(64);
    o.ignore_eos = true;
    EXPECT_EQ(engine.generate(ids, o).tokens, narrow(run.get<std::vector<int64_t>>("tokens")))
        << run.get<std::string>("prompt");
  }
}

TEST_F(Tiny, TokenizerIdsEqualTiktokens) {
  Engine engine = load("bf16", false);
  for (const JsonReader& sample : reference_.get<std::vector<JsonReader>>("tokenizer"))
    EXPECT_EQ(engine.tokenize(sample.get<std::string>("text")), narrow(sample.get<std::vector<int64_t>>("ids")))
        << sample.get<std::string>("text");
}

TEST_F(Tiny, ChatAnswersStopByThemselvesAndComeApart) {
  Engine engine = load("bf16", false);
  const ChatReply reply = engine.chat({{.role = "user", .content = "Hello"}}, {.thinking = true}, greedy(200));
  EXPECT_EQ(reply.generation.finish_reason, "stop");
  EXPECT_FALSE(reply.reasoning.empty());
  EXPECT_FALSE(reply.content.empty());
  EXPECT_EQ(reply.content.find("<|"), std::string::npos);
  const ChatReply plain = engine.chat({{.role = "user", .content = "Hello"}}, {.thinking = false}, greedy(200));
  EXPECT_TRUE(plain.reasoning.empty());
  EXPECT_FALSE(plain.content.empty());
}

TEST_F(Tiny, StreamedTextJoinsToTheAnswerAndStopStringsNeverShow) {
  Engine engine = load("bf16", false);
  const auto prompt = engine.tokenize("In the beginning God created");
  GenerateOptions o = greedy(60);
  const std::string whole = engine.generate(prompt, o).text;
  ASSERT_GT(whole.size(), 40u);
  o.stop = {whole.substr(20, 7)};
  std::string streamed;
  const Generation g =
      engine.generate(prompt, o, [&](const std::string& text, const std::vector<int32_t>&) { streamed += text; });
  EXPECT_EQ(streamed, g.text);
  EXPECT_EQ(g.text, whole.substr(0, whole.find(o.stop[0])));
  EXPECT_EQ(g.finish_reason, "stop");
}

TEST_F(Tiny, SameSeedSameAnswerAndLogprobsBelongToTheTokens) {
  Engine engine = load("bf16", false);
  const auto prompt = engine.tokenize("And it came to pass");
  GenerateOptions o;
  o.seed = 11;
  o.max_tokens = 20;
  o.logprobs = 2;
  const Generation a = engine.generate(prompt, o), b = engine.generate(prompt, o);
  EXPECT_EQ(a.tokens, b.tokens);
  ASSERT_EQ(a.logprobs.size(), a.tokens.size());
  for (size_t i = 0; i < a.tokens.size(); ++i) {
    EXPECT_EQ(a.logprobs[i].token, a.tokens[i]);
    ASSERT_EQ(a.logprobs[i].top.size(), 2u);
    EXPECT_GE(a.logprobs[i].top[0].second, a.logprobs[i].logprob);
  }
  o.seed = 12;
  EXPECT_NE(engine.generate(prompt, o).tokens, a.tokens);
}

TEST_F(Tiny, TheDraftModelAgreesWithItsTwinToo) {
  const TensorFile file("tests/golden/tiny_k3/draft_reference.safetensors");
  const LoadedModel draft = load_model("models/tiny-k3-draft", LoadFormat::checkpoint);
  const RunResult r = run_logits(*draft.model, engine_config(DType::f32), file.ints("tokens.17"));
  const auto want = file.floats("fp32.logits.17");
  ASSERT_EQ(r.logits.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(r.logits[i], want[i], 1e-4f);
}

}  // namespace
}  // namespace kdelta::test
