// Many requests through the C++ door: files of them, and the same answers as one at a time.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
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

TEST_F(BatchFile, AnAnswerIsWhatItsResponseFormatSays) {
  const std::string schema =
      R"({"type":"object","properties":{"n":{"type":"integer","minimum":1,"maximum":99}},"required":["n"],"additionalProperties":false})";
  const std::string common = R"("prompt":"In the beginning","max_tokens":40,"seed":)";
  std::string lines;
  for (int i = 0; i < 4; ++i) {
    const std::string seed = std::to_string(i);
    lines += R"({"custom_id":"s)" + seed +
             R"(","body":{"response_format":{"type":"json_schema","json_schema":{"name":"n","strict":true,"schema":)" +
             schema + "}}," + common + seed + "}}\n";
    lines += R"({"custom_id":"c)" + seed + R"(","body":{"structured_outputs":{"choice":["yes","no"]},)" + common +
             seed + "}}\n";
    lines += R"({"custom_id":"r)" + seed + R"(","body":{"structured_outputs":{"regex":"[a-c]{3}"},)" + common + seed +
             "}}\n";
  }
  write("in", lines);
  Engine engine = load(4, 2);
  EXPECT_EQ(run(engine, "out").failed, 0);
  for (const auto& [id, quoted] : answers("out")) {
    const std::string text = parse_json(quoted, {"answer"}).string();
    if (id[0] == 's') {
      const Json answer = parse_json(text, {"answer"});
      ASSERT_EQ(answer.object().size(), 1u) << text;
      EXPECT_TRUE(answer.find("n")->integer() >= 1 && answer.find("n")->integer() <= 99) << text;
    } else if (id[0] == 'c') {
      EXPECT_TRUE(text == "yes" || text == "no") << text;
    } else {
      EXPECT_TRUE(text.size() == 3 && text.find_first_not_of("abc") == std::string::npos) << text;
    }
  }
}

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
  write("parts", R"({"id":"batch_req_r11","custom_id":"r11","response":{"sta)", std::ios::app);
  const BatchProgress second = run(engine, "parts");
  EXPECT_EQ(second.skipped, first.done);
  EXPECT_EQ(second.done, 12 - first.done);
  EXPECT_EQ(answers("parts"), answers("whole"));
  EXPECT_EQ(run(engine, "parts").skipped, 12);
}

// A line put in front moves the numbers of those behind; a body, the model or a default may change under one id.
TEST_F(BatchFile, AnAnswerToAnotherRequestOfTheSameNameIsRefusedAndStays) {
  const std::string x = R"({"body":{"prompt":"x","max_tokens":3,"temperature":0}})",
                    lord = R"({"body":{"prompt":"The Lord","max_tokens":3,"temperature":0}})";
  write("in", x + "\n");
  Engine engine = load(1);
  EXPECT_EQ(run(engine, "out").done, 1);
  const auto before = answers("out");
  write("in", lord + "\n" + x + "\n");
  EXPECT_THAT(test::error_of([&] { run(engine, "out"); }),
              AllOf(HasSubstr("line 1: the answer to line-1 is of another request"), HasSubstr("another file")));
  EXPECT_EQ(answers("out"), before);
  write("in", x + "\n");
  EXPECT_EQ(run(engine, "out").skipped, 1) << "the same request is kept";
  BatchOptions warmer{.input = path("in"), .output = path("out")};
  warmer.defaults.top_k = 7;
  EXPECT_THAT(test::error_of([&] { run_batch(engine, warmer); }), HasSubstr("sampling setting"));
  LoadOptions other{.model = "models/tiny-k3-draft"};
  other.threads = 1;
  other.max_length = 512;
  Engine draft = Engine::load(other);
  EXPECT_THAT(test::error_of([&] { run(draft, "out"); }), HasSubstr("model"));
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

TEST_F(BatchFile, ALineIsNamedByItsCustomIdEvenIfItIsNoJsonAndElseByItsNumberInTheFile) {
  write("in", R"(
no json

{"custom_id":"twice","body":{"prompt":"x","prompt":"y"}}
{"custom_id":"cut","body":{"prompt":
{"custom_id":"first","custom_id":"second","body":{"prompt":"x"}}
{"body":{"custom_id":"inner","prompt":[99999]}}
{"custom_id":7,"body":{"prompt":"x"}}
)");
  Engine engine = load(1);
  EXPECT_EQ(run(engine, "out").failed, 6);
  std::vector<std::string> names;
  for (const auto& [name, error] : answers("out")) names.push_back(name);
  EXPECT_THAT(names, testing::ElementsAre("cut", "first", "line-2", "line-7", "line-8", "twice"));
}

// A client's mistake has one code, whether the line, its fields or the engine tells it.
TEST_F(BatchFile, WhatAsksForTheImpossibleIsAnInvalidRequestWhereverItIsFound) {
  write("in", R"(no json
{"body":{"prompt":"x","temperature":-1}}
{"body":{"prompt":[1,99999]}}
{"body":{"prompt":[]}}
{"body":{"prompt":"x","logit_bias":{"99999":1}}}
{"body":{"prompt":")" +
                  std::string(4000, 'x') + R"("}}
)");
  Engine engine = load(4);
  EXPECT_EQ(run(engine, "out").failed, 6);
  int lines = 0;
  std::ifstream in(path("out"));
  for (std::string line; std::getline(in, line); ++lines)
    EXPECT_EQ(parse_json(line, {.name = "output"}).find("error")->find("code")->string(), "invalid_request") << line;
  EXPECT_EQ(lines, 6);
}

TEST_F(BatchFile, SeveralChoicesAreTheAnswersOfTheirSeedsInOneLine) {
  const std::string body = R"("prompt":"And God said, Let there be ","max_tokens":9,"temperature":1)";
  std::string lines = "{\"custom_id\":\"three\",\"body\":{" + body + R"(,"n":3,"best_of":3,"seed":7}})" + "\n";
  for (const char* seed : {"7", "8", "9"})
    lines += "{\"custom_id\":\"" + std::string(seed) + "\",\"body\":{" + body + ",\"seed\":" + seed + "}}\n";
  write("in", lines);
  Engine engine = load(2);  // fewer at once than choices
  EXPECT_EQ(run(engine, "out").done, 4);
  auto alone = answers("out");
  alone.erase("three");
  std::map<std::string, std::string> together;
  int64_t tokens = 0;
  std::ifstream in(path("out"));
  for (std::string line; std::getline(in, line);) {
    const Json j = parse_json(line, {.name = "output"});
    const Json& answer = *j.find("response")->find("body");
    const int64_t completion = answer.find("usage")->find("completion_tokens")->integer();
    if (j.find("custom_id")->string() != "three") {
      tokens += completion;
      continue;
    }
    for (const Json& choice : answer.find("choices")->array())
      together[std::to_string(7 + choice.find("index")->integer())] = json_text(*choice.find("text"));
    tokens -= completion;
  }
  EXPECT_EQ(together, alone);
  EXPECT_EQ(tokens, 0) << "usage counts the tokens of all choices";
  EXPECT_NE(together["7"], together["8"]);
}

TEST_F(BatchFile, AModelWithoutTokenizerAnswersInIds) {
  LoadOptions o{.model = "tests/golden/linear_a"};
  o.threads = 1;
  o.max_length = 64;
  Engine engine = Engine::load(o);
  write("in", R"({"body":{"prompt":[1,2,3],"max_tokens":5,"temperature":0}})");
  EXPECT_EQ(run(engine, "out").done, 1);
  GenerateOptions g;
  g.temperature = 0;
  g.max_tokens = 5;
  std::ifstream in(path("out"));
  std::string line;
  std::getline(in, line);
  const Json j = parse_json(line, {.name = "output"});
  std::vector<int32_t> ids;
  for (const Json& id : j.find("response")->find("body")->find("choices")->array()[0].find("token_ids")->array())
    ids.push_back(static_cast<int32_t>(id.integer()));
  EXPECT_EQ(ids, engine.generate({1, 2, 3}, g).tokens);
}

TEST_F(BatchFile, FilesThatCannotServeAreRefusedBeforeAnythingRuns) {
  Engine engine = load(1);
  EXPECT_THAT(test::error_of([&] { run(engine, "out"); }), HasSubstr("cannot be read"));
  write("in", requests(1) + requests(1));
  EXPECT_THAT(test::error_of([&] { run(engine, "out"); }), HasSubstr("custom_id r0 twice, in lines "));
  write("in", requests(1));
  EXPECT_THAT(test::error_of([&] { run_batch(engine, {.input = path("in"), .output = folder_}); }),
              HasSubstr("no regular file"));
}

// Every field of a body by itself: what cannot be honoured is never passed over.
TEST_F(BatchFile, AFieldThatWouldChangeTheAnswerIsRefusedByItsName) {
  const std::string fields[] = {R"("logprobs":3)",
                                R"("logprobs":0)",
                                R"("logprobs":true)",
                                R"("top_logprobs":2)",
                                R"("echo":true)",
                                R"("suffix":"x")",
                                R"("best_of":2)",
                                R"("n":0)",
                                R"("n":129)",
                                R"("n":1.5)",
                                R"("stream":true)",
                                R"("response_format":{"type":"xml"})",
                                R"("structured_outputs":{"regex":"a","choice":["a"]})",
                                R"("guided_regex":"a+")",
                                R"("foo":0)",
                                R"("tools":[])",
                                R"("logit_bias":{"x":1})",
                                R"("logit_bias":{"-1":1})",
                                R"("logit_bias":{"5":true})",
                                R"("logit_bias":[5])",
                                R"("stop_token_ids":[-1])"};
  std::string lines;
  for (const std::string& f : fields) lines += "{\"body\":{\"prompt\":\"x\",\"max_tokens\":1," + f + "}}\n";
  const std::string hi = R"({"role":"user","content":"Hi"})";
  const std::pair<const char*, std::string> chats[] = {
      {"body.messages: array of 0", R"("messages":[])"},
      {"body.messages[0].refusal", R"("messages":[{"role":"user","content":"Hi","refusal":"no"}])"},
      {"body.tool_choice", R"("tool_choice":"required","messages":[)" + hi + "]"},
      {"body.stop", R"("stop":"a","messages":[)" + hi + "]"},
      {"body.logprobs: true, expected null: answers of a batch carry no log-probabilities",
       R"("logprobs":true,"messages":[)" + hi + "]"},
      {"body.best_of: integer 3, expected n, 2", R"("n":2,"best_of":3,"messages":[)" + hi + "]"},
      {"url: string \"/v1/chat/completions\", expected /v1/completions, as the body has prompt", R"("prompt":"a")"},
      {"body.prompt", R"("prompt":"a","messages":[)" + hi + "]"}};
  for (const auto& [named, body] : chats) lines += R"({"url":"/v1/chat/completions","body":{)" + body + "}}\n";
  const std::pair<const char*, std::string> urls[] = {
      {"url: missing, expected /v1/chat/completions, as the body has messages",
       R"({"body":{"messages":[)" + hi + "]}}"},
      {"url: string \"/v1/completions\", expected /v1/chat/completions, as the body has messages",
       R"({"url":"/v1/completions","body":{"prompt":null,"messages":[)" + hi + "]}}"},
      {"url: missing, expected /v1/chat/completions, as the body has messages", R"({"messages":[)" + hi + "]}"},
      {"body.prompt: missing", R"({"body":{}})"}};
  for (const auto& [named, line] : urls) lines += line + "\n";
  lines += R"({"body":{"prompt":"x"},"temperature":0})";
  write("in", lines);
  Engine engine = load(4);
  EXPECT_EQ(run(engine, "out").done, 0);
  auto got = answers("out");
  size_t number = 0;
  for (const std::string& f : fields)
    EXPECT_THAT(got["line-" + std::to_string(++number)], HasSubstr("body." + f.substr(1, f.find('"', 1) - 1))) << f;
  for (const auto& [named, body] : chats)
    EXPECT_THAT(got["line-" + std::to_string(++number)], HasSubstr(named)) << body;
  for (const auto& [named, line] : urls) EXPECT_THAT(got["line-" + std::to_string(++number)], HasSubstr(named)) << line;
  EXPECT_THAT(got["line-" + std::to_string(++number)], HasSubstr("temperature: not supported"));
}

TEST_F(BatchFile, TheLimitOfAnAnswerHasTwoNamesAndOneValue) {
  const std::string plain = R"("prompt":"And God said","temperature":0,"ignore_eos":true)";
  const std::pair<const char*, const char*> rows[] = {
      {R"("max_tokens":5)", "I am\""},
      {R"("max_completion_tokens":6)", "I am the\""},
      {R"("max_tokens":7,"max_completion_tokens":7)", "I am the God\""},
      {R"("max_tokens":null,"max_completion_tokens":8)", "I am the God of\""},
      {R"("max_tokens":9,"max_completion_tokens":null)", "I am the God of Abraham\""},
      {R"("max_tokens":5,"max_completion_tokens":9)", "I am\""},
      {R"("max_tokens":9,"max_completion_tokens":6)", "I am the\""}};
  std::string lines;
  for (const auto& [fields, want] : rows) lines += "{\"body\":{" + plain + "," + fields + "}}\n";
  write("in", lines);
  Engine engine = load(4);
  EXPECT_EQ(run(engine, "out").done, std::ssize(rows));
  auto got = answers("out");
  size_t number = 0;
  for (const auto& [fields, want] : rows)
    EXPECT_THAT(got["line-" + std::to_string(++number)], HasSubstr(want)) << fields;
}

TEST_F(BatchFile, ValuesThatAreOffAndFieldsThatChangeNoAnswerAreAccepted) {
  const std::string plain = R"("prompt":"And God said","max_tokens":6,"temperature":0)";
  write("in", "{\"custom_id\":\"plain\",\"body\":{" + plain + "}}\n" +
                  R"({"custom_id":"off","method":"POST","body":{"n":1,"best_of":1,"stream":false,"echo":false,)" +
                  R"("logprobs":null,"top_logprobs":0,"suffix":"","response_format":{"type":"text"},"logit_bias":{},)" +
                  R"("stop":null,"foo":null,"model":"m","user":"u","metadata":{"a":"b"},"store":true,)" + plain + "}}");
  Engine engine = load(2);
  EXPECT_EQ(run(engine, "out").done, 2);
  auto got = answers("out");
  EXPECT_EQ(got["off"], got["plain"]);
}

TEST_F(BatchFile, BiasesStopIdsThinkingAndToolsReachTheAnswer) {
  const std::string tools = R"([{"type":"function","function":{"name":"weather","parameters":{"type":"object"}}}])";
  const std::string chat = R"("url":"/v1/chat/completions","body":{"messages":[{"role":"user","content":"Hello"}],)"
                           R"("temperature":0,"max_tokens":12,)";
  write("in", R"({"custom_id":"bias","body":{"prompt":"And","max_tokens":2,"temperature":0,"logit_bias":{"70":100}}}
{"custom_id":"stop","body":{"prompt":"And","temperature":0,"logit_bias":{"70":100},"stop_token_ids":[70]}}
{"custom_id":"tools",)" +
                  chat + "\"tools\":" + tools + "}}\n" + R"({"custom_id":"plain",)" + chat + "\"thinking\":false}}\n");
  Engine engine = load(4);
  ASSERT_EQ(run(engine, "out").done, 4);
  std::map<std::string, Json> got;
  std::ifstream in(path("out"));
  for (std::string line; std::getline(in, line);) {
    const Json j = parse_json(line, {.name = "output"});
    got[j.find("custom_id")->string()] = *j.find("response")->find("body");
  }
  EXPECT_EQ(got["bias"].find("choices")->array()[0].find("text")->string(), engine.detokenize({70, 70}));
  EXPECT_EQ(got["stop"].find("choices")->array()[0].find("finish_reason")->string(), "stop");
  const ChatMessage hello{.role = "user", .content = "Hello"};
  EXPECT_EQ(got["tools"].find("usage")->find("prompt_tokens")->integer(),
            std::ssize(engine.chat_prompt({hello}, {.thinking = true, .effort = "", .tools_json = tools})));
  GenerateOptions o;
  o.temperature = 0;
  o.max_tokens = 12;
  EXPECT_EQ(got["plain"].find("choices")->array()[0].find("message")->find("content")->string(),
            engine.chat({hello}, {.thinking = false, .effort = "", .tools_json = ""}, o).content);
}

TEST_F(BatchFile, ErrorsOfAnEarlierRunAreTriedAgainAndAnswersAreNot) {
  write("in", requests(2) + R"({"custom_id":"bad","body":{"prompt":"x","max_tokens":1,"temperature":-1}})" + "\n");
  Engine engine = load(2);
  EXPECT_EQ(run(engine, "out").failed, 1);
  const BatchProgress again = run(engine, "out");
  EXPECT_EQ(again.skipped, 2);
  EXPECT_EQ(again.failed, 1);
  EXPECT_THAT(answers("out")["bad"], HasSubstr("temperature"));
  write("in", requests(2) + R"({"custom_id":"bad","body":{"prompt":"x","max_tokens":1}})" + "\n");
  EXPECT_EQ(run(engine, "out").done, 1);
  EXPECT_THAT(answers("out")["bad"], Not(HasSubstr("temperature")));
  EXPECT_EQ(run(engine, "out").skipped, 3);
  EXPECT_FALSE(std::filesystem::exists(path("out.partial-answers")));
}

TEST_F(BatchFile, AnOutputThatHoldsSomethingElseIsRefusedByItsLineAndStaysAsItIs) {
  write("in", requests(1));
  Engine engine = load(1);
  const std::string answer = R"({"id":"batch_req_a","custom_id":"a","response":{},"error":null})" + std::string("\n");
  for (const auto& [text, told] : std::initializer_list<std::pair<std::string, const char*>>{
           {requests(2), "line 1"},
           {answer + "{\"custom_id\":\"b\",\"response\":null,\"error\":null}\n", "line 2: no answer"},
           {answer + "{\"response\":{}}\n", "line 2: custom_id: missing"},
           {answer + "some text\n", "line 2"},
           {"a note of mine without an end", "line 1: a note of mine"}}) {
    write("out", text);
    EXPECT_THAT(test::error_of([&] { run(engine, "out"); }), HasSubstr(told));
    std::ifstream in(path("out"));
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(in), {}), text);
  }
  std::filesystem::create_hard_link(path("in"), path("other"));
  EXPECT_THAT(test::error_of([&] { run(engine, "in"); }), HasSubstr("the same file as the input"));
  EXPECT_THAT(test::error_of([&] { run(engine, "other"); }), HasSubstr("the same file as the input"));
}

TEST_F(BatchFile, AnOutputThatAnotherProcessWritesIsRefused) {
  write("in", requests(1));
  Engine engine = load(1);
  const int other = open(path("out").c_str(), O_RDWR | O_CREAT, 0666);
  ASSERT_EQ(flock(other, LOCK_EX), 0);
  EXPECT_THAT(test::error_of([&] { run(engine, "out"); }), HasSubstr("another process is writing it"));
  close(other);
  EXPECT_EQ(run(engine, "out").done, 1);
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

TEST(Drafts, ADraftModelOfAnotherTokenizerIsRefusedByItsFirstOtherToken) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(testing::TempDir()) / ("kdelta_draft_" + std::to_string(getpid()));
  fs::remove_all(folder);
  fs::copy("models/tiny-k3-draft", folder);
  std::vector<std::string> lines;
  std::ifstream in(folder / "tiktoken.model");
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  const auto rank = [&](size_t i) { return lines[i].substr(lines[i].find(' ')); };
  const auto text = [&](size_t i) { return lines[i].substr(0, lines[i].find(' ')); };
  ASSERT_EQ(rank(300), " 300");
  const std::string swapped = text(300) + rank(301);
  lines[301] = text(301) + rank(300);
  lines[300] = swapped;
  LoadOptions o{.model = "models/tiny-k3"};
  o.threads = 1;
  o.max_length = 64;
  o.drafts = 3;
  o.draft_model = folder;
  EXPECT_EQ(test::error_of([&] { Engine::load(o); }), "no error");
  fs::remove(folder / "tiktoken.model");
  EXPECT_EQ(test::error_of([&] { Engine::load(o); }), "no error") << "one without a tokenizer says nothing";
  std::ofstream out(folder / "tiktoken.model");
  for (const std::string& line : lines) out << line << "\n";
  out.close();
  EXPECT_THAT(test::error_of([&] { Engine::load(o); }), HasSubstr("another tokenizer: token 300 is"));
  fs::remove_all(folder);
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
