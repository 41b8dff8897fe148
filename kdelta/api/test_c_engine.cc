#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <thread>

#include "kdelta/api/c.h"
#include "kdelta/api/engine.h"

namespace kdelta {
namespace {

const std::string kPrompt = "And God said unto him";

// What arrived; stops after `most` tokens.
struct Heard {
  std::string text = {};
  std::vector<int32_t> tokens = {};
  size_t most = SIZE_MAX;
  static int32_t hear(const char* text, size_t bytes, const int32_t* tokens, size_t count, void* user) {
    auto& self = *static_cast<Heard*>(user);
    self.text.append(text, bytes);
    self.tokens.insert(self.tokens.end(), tokens, tokens + count);
    return self.tokens.size() >= self.most ? 1 : 0;
  }
};

class CEngine : public testing::Test {
 public:
  CEngine() {
    const kdelta_load_options load{.model = "models/tiny-k3", .threads = 1, .max_length = 256, .max_sequences = 3};
    EXPECT_EQ(kdelta_engine_load(&load, &engine), KDELTA_OK) << kdelta_last_error();
    options = {};
    EXPECT_EQ(kdelta_generate_options_init(engine, &options), KDELTA_OK);
    options.temperature = 0.8f;
    options.seed = 5;
    options.max_tokens = 12;
    size_t count = 0;
    EXPECT_EQ(kdelta_tokenize(engine, kPrompt.data(), kPrompt.size(), 0, nullptr, 0, &count), KDELTA_OK);
    prompt.resize(count);
    EXPECT_EQ(kdelta_tokenize(engine, kPrompt.data(), kPrompt.size(), 0, prompt.data(), count, &count), KDELTA_OK);
  }
  ~CEngine() override { kdelta_engine_destroy(engine); }

  // The same request through the C++ door.
  Generation expected() {
    Engine direct = Engine::load({.model = "models/tiny-k3", .threads = 1, .max_length = 256});
    GenerateOptions o = direct.default_generation();
    o.temperature = 0.8f;
    o.seed = 5;
    o.max_tokens = 12;
    return direct.generate(direct.tokenize(kPrompt), o);
  }

  kdelta_engine* engine = nullptr;
  kdelta_generate_options options;
  std::vector<int32_t> prompt;
};

TEST_F(CEngine, GivesTheAnswerOfTheCppDoor) {
  const Generation want = expected();
  Heard heard;
  kdelta_end end{.struct_size = sizeof(end)};
  ASSERT_EQ(kdelta_generate(engine, prompt.data(), prompt.size(), &options, Heard::hear, &heard, &end), KDELTA_OK);
  EXPECT_EQ(heard.text, want.text);
  EXPECT_EQ(heard.tokens, want.tokens);
  EXPECT_EQ(end.finish_reason, want.finish_reason);
  EXPECT_EQ(end.tokens, 12);
  EXPECT_EQ(end.prompt_tokens, static_cast<int64_t>(prompt.size()));
  std::string text(200, 0);
  size_t bytes = 0;
  ASSERT_EQ(kdelta_detokenize(engine, heard.tokens.data(), heard.tokens.size(), 0, text.data(), 3, &bytes), KDELTA_OK);
  EXPECT_EQ(bytes, want.text.size());
  EXPECT_EQ(text.substr(0, 4), want.text.substr(0, 3) + '\0');  // no more than it was given room for
}

TEST_F(CEngine, ACallbackEndsTheAnswer) {
  Heard heard{.most = 3};
  kdelta_end end{.struct_size = sizeof(end)};
  ASSERT_EQ(kdelta_generate(engine, prompt.data(), prompt.size(), &options, Heard::hear, &heard, &end), KDELTA_OK);
  EXPECT_STREQ(end.finish_reason, "cancelled");
  EXPECT_EQ(heard.tokens.size(), 3u);
}

TEST_F(CEngine, AStateGoesOnWhereItWasTaken) {
  const Generation want = expected();
  Heard heard;
  kdelta_end end{.struct_size = sizeof(end)};
  kdelta_bytes* state = nullptr;
  ASSERT_EQ(kdelta_start(engine, prompt.data(), prompt.size(), &options, 4, Heard::hear, &heard, &end, &state),
            KDELTA_OK);
  EXPECT_STREQ(end.finish_reason, "");
  ASSERT_NE(state, nullptr);
  ASSERT_EQ(kdelta_resume(engine, kdelta_bytes_data(state), kdelta_bytes_size(state), Heard::hear, &heard, &end),
            KDELTA_OK)
      << kdelta_last_error();
  EXPECT_EQ(heard.tokens, want.tokens);
  std::string torn(static_cast<const char*>(kdelta_bytes_data(state)), kdelta_bytes_size(state) / 2);
  kdelta_bytes_destroy(state);
  EXPECT_EQ(kdelta_resume(engine, torn.data(), torn.size(), nullptr, nullptr, nullptr), KDELTA_BAD_FILE);
  EXPECT_EQ(kdelta_resume(engine, nullptr, 9, nullptr, nullptr, nullptr), KDELTA_INVALID_ARGUMENT);
}

TEST_F(CEngine, BadArgumentsAreRefusedInWords) {
  const auto refused = [&](kdelta_status status, const char* words) {
    EXPECT_EQ(status, KDELTA_INVALID_ARGUMENT) << words;
    EXPECT_NE(std::string(kdelta_last_error()).find(words), std::string::npos) << kdelta_last_error();
  };
  const int32_t alien = 1 << 30;
  const auto generate = [&](const int32_t* p, size_t n) {
    return kdelta_generate(engine, p, n, &options, nullptr, nullptr, nullptr);
  };
  refused(generate(nullptr, 5), "prompt");
  refused(generate(prompt.data(), 0), "prompt");
  refused(generate(&alien, 1), "token 1073741824");
  options.temperature = -1;
  refused(generate(prompt.data(), prompt.size()), "temperature");
  options = {};
  refused(generate(prompt.data(), prompt.size()), "struct_size 0");
  kdelta_end end = {};
  refused(kdelta_generate(engine, prompt.data(), prompt.size(), nullptr, nullptr, nullptr, &end), "kdelta_end");
  refused(kdelta_start(engine, prompt.data(), prompt.size(), nullptr, 1, nullptr, nullptr, nullptr, nullptr), "state");
  refused(kdelta_generate(nullptr, nullptr, 0, nullptr, nullptr, nullptr, nullptr), "engine: null");
  size_t count = 0;
  refused(kdelta_tokenize(engine, nullptr, 4, 0, nullptr, 0, &count), "text");
  refused(kdelta_tokenize(engine, "a", 1, 0, nullptr, 4, &count), "null pointer");
  refused(kdelta_tokenize(engine, "a", 1, 0, nullptr, 0, nullptr), "count");
  kdelta_engine* none = engine;
  const kdelta_load_options no_model;
  refused(kdelta_engine_load(&no_model, &none), "model");
  EXPECT_EQ(none, nullptr);
  const kdelta_load_options bad{.model = "models/tiny-k3", .threads = -3};
  refused(kdelta_engine_load(&bad, &none), "threads");
  const kdelta_load_options nowhere{.model = "/nowhere"};
  EXPECT_EQ(kdelta_engine_load(&nowhere, &none), KDELTA_BAD_FILE);
  EXPECT_EQ(kdelta_engine_vocab_size(nullptr), -1);
  kdelta_engine_destroy(nullptr), kdelta_service_destroy(nullptr), kdelta_session_destroy(nullptr);
}

TEST(CStatus, AMessageIsUtf8WhateverBytesANameHas) {
  const kdelta_load_options load{.model = "models/\xc3\xa9t\xff\xe9"};
  kdelta_engine* none = nullptr;
  EXPECT_NE(kdelta_engine_load(&load, &none), KDELTA_OK);
  EXPECT_NE(std::string(kdelta_last_error()).find("models/\\xc3\\xa9t\\xff\\xe9"), std::string::npos)
      << kdelta_last_error();
  const kdelta_load_options accented{.model = "models/\xc3\xa9t"};
  EXPECT_NE(kdelta_engine_load(&accented, &none), KDELTA_OK);
  EXPECT_NE(std::string(kdelta_last_error()).find("models/\xc3\xa9t"), std::string::npos) << kdelta_last_error();
}

TEST_F(CEngine, ACallFromItsOwnCallbackIsRefused) {
  const auto again = [](const char*, size_t, const int32_t* tokens, size_t, void* user) -> int32_t {
    auto& self = *static_cast<CEngine*>(user);
    EXPECT_EQ(kdelta_generate(self.engine, tokens, 1, nullptr, nullptr, nullptr, nullptr), KDELTA_INVALID_ARGUMENT);
    EXPECT_NE(std::string(kdelta_last_error()).find("callback"), std::string::npos) << kdelta_last_error();
    return 1;
  };
  EXPECT_EQ(kdelta_generate(engine, prompt.data(), prompt.size(), &options, again, this, nullptr), KDELTA_OK);
}

TEST_F(CEngine, TheChildOfAForkIsRefused) {
  const pid_t child = fork();
  if (child == 0)
    _exit(kdelta_generate(engine, prompt.data(), prompt.size(), &options, nullptr, nullptr, nullptr) ==
                  KDELTA_INVALID_ARGUMENT
              ? 0
              : 1);
  int status = 1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST_F(CEngine, SessionsOfOneServiceAnswerAsTheEngineAlone) {
  const Generation want = expected();
  kdelta_service* service = nullptr;
  ASSERT_EQ(kdelta_service_create(engine, &service), KDELTA_OK) << kdelta_last_error();
  engine = nullptr;
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i)
    threads.emplace_back([&] {
      kdelta_session* session = nullptr;
      ASSERT_EQ(kdelta_submit(service, prompt.data(), prompt.size(), &options, &session), KDELTA_OK);
      Heard heard;
      kdelta_end end{.struct_size = sizeof(end)};
      for (int32_t ended = 0; !ended;)
        ASSERT_EQ(kdelta_session_wait(session, 1000, Heard::hear, &heard, &ended, &end), KDELTA_OK);
      EXPECT_EQ(heard.text, want.text);
      EXPECT_EQ(heard.tokens, want.tokens);
      EXPECT_STREQ(end.finish_reason, "length");
      kdelta_session_destroy(session);
    });
  for (std::thread& t : threads) t.join();

  options.max_tokens = 200;
  kdelta_session* cancelled = nullptr;
  ASSERT_EQ(kdelta_submit(service, prompt.data(), prompt.size(), &options, &cancelled), KDELTA_OK);
  Heard heard{.most = 1};  // enough after the first
  kdelta_end end{.struct_size = sizeof(end)};
  for (int32_t ended = 0; !ended;)
    ASSERT_EQ(kdelta_session_wait(cancelled, 1000, Heard::hear, &heard, &ended, &end), KDELTA_OK);
  EXPECT_STREQ(end.finish_reason, "cancelled");
  EXPECT_LT(end.tokens, 200);
  kdelta_session_destroy(cancelled);
  kdelta_session* orphan = nullptr;
  ASSERT_EQ(kdelta_submit(service, prompt.data(), prompt.size(), &options, &orphan), KDELTA_OK);
  options.top_p = 7;
  EXPECT_EQ(kdelta_submit(service, prompt.data(), prompt.size(), &options, &cancelled), KDELTA_INVALID_ARGUMENT);
  EXPECT_EQ(cancelled, nullptr);
  kdelta_service_destroy(service);
  int32_t ended = 0;
  EXPECT_EQ(kdelta_session_wait(orphan, 1000, nullptr, nullptr, &ended, &end), KDELTA_OK);
  EXPECT_EQ(ended, 1);
  kdelta_session_destroy(orphan);
}

}  // namespace
}  // namespace kdelta
