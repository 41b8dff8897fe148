// Many requests through the C++ door: files of them, and the same answers as one at a time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "kdelta/api/batch.h"
#include "kdelta/io/json.h"
#include "tests/support/op_test.h"

namespace kdelta {
namespace {

using testing::HasSubstr;

class BatchFile : public testing::Test {
 protected:
  BatchFile() : folder_(std::filesystem::temp_directory_path() / ("kdelta_batch_" + std::to_string(getpid()))) {
    std::filesystem::create_directory(folder_);
  }
  ~BatchFile() override { std::filesystem::remove_all(folder_); }

  static Engine load(int64_t sequences, int64_t drafts = 0) {
    LoadOptions o{.model = "models/tiny-k3"};
    o.threads = 1;
    o.max_length = 512;
    o.max_sequences = sequences;
    o.drafts = drafts;
    o.prefix_snapshots = 4;
    return Engine::load(o);
  }
  std::string path(const char* name) const { return folder_ / name; }
  void write(const char* name, const std::string& text, std::ios::openmode mode = std::ios::trunc) const {
    std::ofstream(path(name), std::ios::out | mode) << text;
  }
  // custom_id -> the answer's text, or its error.
  std::map<std::string, std::string> answers(const char* name) const {
    std::map<std::string, std::string> all;
    std::ifstream in(path(name));
    for (std::string line; std::getline(in, line);) {
      const Json j = parse_json(line, {.name = "output"});
      const Json* response = j.find("response");
      const std::string text = response->is_null()
                                   ? j.find("error")->find("message")->string()
                                   : json_text(*response->find("body")->find("choices")->array()[0].find("text"));
      EXPECT_TRUE(all.emplace(j.find("custom_id")->string(), text).second) << "answered twice: " << line;
    }
    return all;
  }
  // Requests r0.. with prompts that share a beginning.
  static std::string requests(int count) {
    std::string text;
    for (int i = 0; i < count; ++i)
      text += "{\"custom_id\":\"r" + std::to_string(i) + "\",\"body\":{\"prompt\":\"And God said, Let there be " +
              std::string(static_cast<size_t>(i), 'x') + "\",\"max_tokens\":" + std::to_string(5 + i) +
              ",\"temperature\":" + (i % 2 == 0 ? "0" : "0.9") + ",\"seed\":" + std::to_string(i) + "}}\n";
    return text;
  }
  BatchProgress run(Engine& engine, const char* output, std::atomic<bool>* cancel = nullptr, int64_t cancel_after = 0) {
    BatchOptions o{.input = path("in"), .output = path(output)};
    o.cancel = cancel;
    o.progress = [&](const BatchProgress& p) {
      if (cancel != nullptr && p.done >= cancel_after) *cancel = true;
    };
    return run_batch(engine, o);
  }

  std::filesystem::path folder_;
};

TEST_F(BatchFile, ManyAtOnceAnswerAsOneAtATime) {
  write("in", requests(20));
  Engine one = load(1), many = load(7, 4);
  EXPECT_EQ(run(one, "one").done, 20);
  EXPECT_EQ(run(many, "many").done, 20);
  EXPECT_EQ(answers("many"), answers("one"));
  EXPECT_EQ(answers("one").size(), 20u);
}

// After a kill: what was answered is not asked again, a torn line is.
TEST_F(BatchFile, ARunThatWasInterruptedGoesOnWhereItStopped) {
  write("in", requests(12));
  Engine engine = load(3);
  run(engine, "whole");
  std::atomic<bool> cancel{false};
  const BatchProgress first = run(engine, "parts", &cancel, 4);
  EXPECT_LT(first.done, 12);
  write("parts", R"({"custom_id":"r11","response":{"sta)", std::ios::app);
  const BatchProgress second = run(engine, "parts");
  EXPECT_EQ(second.skipped, first.done);
  EXPECT_EQ(second.done, 12 - first.done);
  EXPECT_EQ(answers("parts"), answers("whole"));
  EXPECT_EQ(run(engine, "parts").skipped, 12);
}

TEST_F(BatchFile, ABadRequestGetsItsErrorAndTheOthersTheirAnswers) {
  write("in", requests(2) + R"(no json
{"custom_id":"ids","body":{"prompt":[1,99999]}}
{"custom_id":"url","url":"/v1/embeddings","body":{}}
{"custom_id":"hot","body":{"prompt":"x","temperature":-1}}
{"custom_id":"long","body":{"prompt":")" +
                  std::string(4000, 'x') + R"("}}
)");
  Engine engine = load(4);
  const BatchProgress p = run(engine, "out");
  EXPECT_EQ(p.done, 2);
  EXPECT_EQ(p.failed, 5);
  auto got = answers("out");
  EXPECT_THAT(got["line-3"], HasSubstr("line-3: byte 2"));
  EXPECT_THAT(got["ids"], HasSubstr("token 99999 at 1, expected 0..2303"));
  EXPECT_THAT(got["url"], HasSubstr("/v1/embeddings"));
  EXPECT_THAT(got["hot"], HasSubstr("temperature: -1"));
  EXPECT_THAT(got["long"], HasSubstr("the context holds 512"));
}

TEST_F(BatchFile, FilesThatCannotServeAreRefusedBeforeAnythingRuns) {
  Engine engine = load(1);
  EXPECT_THAT(test::error_of([&] { run(engine, "out"); }), HasSubstr("cannot be read"));
  write("in", requests(1) + requests(1));
  EXPECT_THAT(test::error_of([&] { run(engine, "out"); }), HasSubstr("custom_id r0 twice"));
  write("in", requests(1));
  EXPECT_THAT(test::error_of([&] { run_batch(engine, {.input = path("in"), .output = folder_}); }),
              HasSubstr("no regular file"));
}

TEST(Drafts, ADraftModelNeedsDraftsAndItsMemoryIsInTheReport) {
  LoadOptions o{.model = "models/tiny-k3"};
  o.threads = 1;
  o.max_length = 512;
  o.draft_model = "models/tiny-k3-draft";
  EXPECT_THAT(test::error_of([&] { Engine::load(o); }), HasSubstr("draft_model: given, but drafts is 0"));
  o.drafts = 3;
  Engine drafted = Engine::load(o);
  EXPECT_GT(drafted.memory().drafter, 2000000) << "its weights alone have 2.3 MB";
  o.draft_model = "";
  o.drafts = 0;
  Engine plain = Engine::load(o);
  GenerateOptions g;
  g.temperature = 0;
  g.max_tokens = 40;
  EXPECT_EQ(drafted.generate({1, 2, 3}, g).tokens, plain.generate({1, 2, 3}, g).tokens);
  EXPECT_GT(drafted.work().accepted_drafts, 0);
}

// A stop string that ends inside the drafts of a step: nothing behind it is heard.
TEST(Drafts, AStopStringInsideAVerifiedStepEndsTheAnswerThere) {
  LoadOptions o{.model = "models/tiny-k3"};
  o.threads = 1;
  o.max_length = 512;
  Engine plain = Engine::load(o);
  o.drafts = 8;
  o.draft_model = "models/tiny-k3-draft";
  Engine drafted = Engine::load(o);
  const auto ids = plain.tokenize("And God said");
  GenerateOptions g;
  g.temperature = 0;
  g.max_tokens = 60;
  g.stop = {"Abraham"};
  const Generation a = plain.generate(ids, g), b = drafted.generate(ids, g);
  ASSERT_EQ(a.finish_reason, "stop");
  EXPECT_EQ(a.text, b.text);
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(b.finish_reason, "stop");
}

}  // namespace
}  // namespace kdelta
