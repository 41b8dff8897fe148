// kdelta chat on a terminal, and what it saves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "frontends/cli/json_text.h"
#include "kdelta/io/json.h"
#include "tests/cli/run_program.h"

namespace kdelta::test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

TEST(SavedChat, HoldsToolCallsAndWhatTiesResultsToThem) {
  const ChatMessage call{.role = "assistant",
                         .content = "",
                         .reasoning = "look \"it\" up",
                         .calls = {{"call_1", "get", "{\"a\": \"b\\n\"}"}, {"call_2", "get", "{}"}}};
  const Json j = parse_json(cli::message_line(call), {"line"});
  EXPECT_EQ(j.find("role")->string(), "assistant");
  EXPECT_EQ(j.find("reasoning")->string(), "look \"it\" up");
  ASSERT_EQ(j.find("tool_calls")->array().size(), 2u);
  const Json& first = j.find("tool_calls")->array()[0];
  EXPECT_EQ(first.find("id")->string(), "call_1");
  EXPECT_EQ(first.find("type")->string(), "function");
  EXPECT_EQ(first.find("function")->find("name")->string(), "get");
  EXPECT_EQ(first.find("function")->find("arguments")->string(), "{\"a\": \"b\\n\"}");
  EXPECT_EQ(cli::message_line({.role = "tool", .content = "4", .name = "get", .call_id = "call_1"}),
            R"({"role":"tool","content":"4","name":"get","tool_call_id":"call_1"})");
  EXPECT_EQ(cli::message_line({.role = "user", .content = "x\ny"}), R"({"role":"user","content":"x\ny"})");
}

// A conversation long enough for a state, its file, and the words of a second process that goes on with it.
class ChatFiles : public testing::Test {
 protected:
  ChatFiles() {
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
    std::string question = "Who is";
    for (int i = 0; i < 80; ++i) question += " the God of Abraham";
    first_ = talk(question + "\n/save " + path() + "\nAnd who was his son?\n");
  }
  ~ChatFiles() override { fs::remove_all(folder_); }
  std::string path() const { return folder_ + "/talk.jsonl"; }
  static Result talk(const std::string& lines, const std::string& flags = "") {
    return run_program("chat models/tiny-k3 --temp 0 -n 24 -c 1024 " + flags, "<<'EOF'\n" + lines + "EOF\n");
  }
  static std::string last_line(const std::string& text) {
    const size_t end = text.find_last_not_of('\n'), begin = text.rfind('\n', end);
    return text.substr(begin == std::string::npos ? 0 : begin + 1, end - begin);
  }
  std::string folder_ = testing::TempDir() + "kdelta_chat_XXXXXX";
  Result first_;
};

TEST_F(ChatFiles, ASavedConversationGoesOnInAnotherProcessWithoutBeingComputedAgain) {
  EXPECT_EQ(first_.status, 0) << first_.err;
  EXPECT_THAT(first_.err, HasSubstr("2 messages, "));
  EXPECT_TRUE(fs::exists(path() + ".state"));
  const Result second = talk("/load " + path() + "\nAnd who was his son?\n/stats\n");
  EXPECT_EQ(second.status, 0) << second.err;
  EXPECT_EQ(last_line(second.out), last_line(first_.out));
  EXPECT_THAT(second.err, testing::ContainsRegex("2 messages, [1-9][0-9]+ tokens of state"));
  EXPECT_THAT(second.err, testing::ContainsRegex("s, [1-9][0-9]+ of them from earlier turns"));
  fs::remove(path() + ".state");
  const Result cold = talk("/load " + path() + "\nAnd who was his son?\n/stats\n");
  EXPECT_EQ(last_line(cold.out), last_line(first_.out)) << "the text is what counts";
  EXPECT_THAT(cold.err, HasSubstr(" 0 of them from earlier turns (nothing is known of the prompt's beginning)"));
}

TEST_F(ChatFiles, ATornOrForeignStateIsRefusedAndTheConversationAtHandStays) {
  const auto refused = [&](const std::string& flags, const std::string& why) {
    const Result r = talk("Hello\n/load " + path() + "\nHello\n", "-q " + flags);
    const Result alone = talk("Hello\nHello\n", "-q " + flags);
    EXPECT_EQ(r.status, 1);
    EXPECT_EQ(r.out, alone.out);
    EXPECT_THAT(r.err, testing::AllOf(HasSubstr("kdelta: " + path() + ".state: " + why),
                                      HasSubstr("; without that file the conversation is computed again")));
  };
  refused("--state-dtype bf16", "recurrent of layer 0: F32");
  refused("--load-format dummy", "of another model, number ");
  fs::resize_file(path() + ".state", fs::file_size(path() + ".state") - 1);
  refused("", "torn: ");
  EXPECT_EQ(talk("/load " + path() + "\n", "-q --prefix-snapshots 0").status, 0) << "no state is asked for";
}

TEST_F(ChatFiles, AStateThatDoesNotBelongToADamagedTextIsNotedAndTheTextCounts) {
  std::string question = "Who is";
  for (int i = 0; i < 80; ++i) question += " the God of Abraham";
  ASSERT_EQ(talk("Hello\n" + question + "\n/save " + path() + "\n").status, 0);
  std::ifstream in(path());
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  std::string flipped = text;
  flipped[text.find("Hello")] ^= 1;
  const std::string cut = text.substr(0, text.find('\n') + 1);
  for (const std::string& damaged : {flipped, cut}) {
    std::ofstream(path()) << damaged;
    const Result r = talk("/load " + path() + "\nAnd who was his son?\n/stats\n", "-q");
    EXPECT_EQ(r.status, 0) << r.err;
    EXPECT_THAT(r.err, testing::ContainsRegex("note: .*\\.state: the state does not belong to this text: 0 of "
                                              "[1-9][0-9]+ tokens kept"));
    EXPECT_THAT(r.err, HasSubstr(" 0 of them from earlier turns"));
  }
  std::ofstream(path()) << text;
  EXPECT_THAT(talk("/load " + path() + "\n", "-q").err, testing::Not(HasSubstr("note:")));
}

TEST_F(ChatFiles, AnEmptyConversationReplacesNothingAndAShortOneLeavesNoOldState) {
  ASSERT_TRUE(fs::exists(path() + ".state"));
  const auto size = fs::file_size(path());
  EXPECT_EQ(talk("/save " + path() + "\n", "-q").status, 1);
  EXPECT_EQ(fs::file_size(path()), size);
  EXPECT_TRUE(fs::exists(path() + ".state"));
  const Result r = talk("Hi\n/save " + path() + "\n");
  EXPECT_THAT(r.err, HasSubstr("too few for a state"));
  EXPECT_FALSE(fs::exists(path() + ".state"));
  EXPECT_THAT(talk("/load " + path() + "\n", "-q").err, testing::Not(HasSubstr("note:")));
}

TEST_F(ChatFiles, AStateComputedByOtherInstructionsIsNotedAndKept) {
  const Result r = talk("/load " + path() + "\n", "--isa portable --kda-gate composed");
  EXPECT_EQ(r.status, 0) << r.err;
  EXPECT_THAT(r.err, testing::ContainsRegex("2 messages, [1-9][0-9]+ tokens of state"));
  EXPECT_THAT(r.err, HasSubstr(", gate factored, here it is portable, gate composed; last bits may differ"));
}

// -n cuts within the tags that end every answer.
TEST(Chat, AnAnswerCutByMaxTokensShowsNoPieceOfItsEndMark) {
  const auto ask = [](int n, const std::string& flags) {
    return run_program("chat models/tiny-k3 -q --temp 0 -p 'What does dark mean?' " + flags + " -n " +
                       std::to_string(n));
  };
  const std::string whole = ask(64, "").out;
  ASSERT_GT(whole.size(), 2u);
  for (int n = 33; n < 42; ++n) {
    const std::string out = ask(n, "").out;
    EXPECT_TRUE(out.empty() || whole.starts_with(out.substr(0, out.size() - 1))) << n << ": " << out;
    EXPECT_EQ(out.find("<|"), std::string::npos) << n << ": " << out;
  }
  EXPECT_EQ(parse_json(ask(39, "--json").out, {"answer"}).find("finish_reason")->string(), "length");
}

TEST_F(ChatFiles, WhatIsNoConversationIsRefusedByName) {
  std::ofstream(folder_ + "/bad") << "{\"role\":\"robot\",\"content\":\"x\"}\n";
  std::ofstream(folder_ + "/empty");
  for (const auto& [line, why] : std::initializer_list<std::pair<std::string, const char*>>{
           {"/load", "/load: no file named"},
           {"/save", "/save: no file named"},
           {"/load " + folder_ + "/bad", "role: 'robot'"},
           {"/load " + folder_ + "/empty", "holds no message"},
           {"/load /nonesuch", "/nonesuch: cannot open"},
           {"/load /dev/zero", "/dev/zero: not a regular file"},
           {"/load " + folder_, ": not a regular file"},
           {"/save " + folder_ + "/nothing", "/save: nothing has been said"},
           {"Hello\n/save " + folder_, "no regular file"},
           {"Hello\n/save /nonesuch/x", "/nonesuch/x: cannot create"}}) {
    const Result r = talk(line + "\n", "-q");
    EXPECT_EQ(r.status, 1) << line;
    EXPECT_THAT(r.err, HasSubstr(why)) << line;
  }
}

// The program on a pseudo terminal.
class Terminal {
 public:
  explicit Terminal(const std::string& home) {
    child_ = forkpty(&fd_, nullptr, nullptr, nullptr);
    if (child_ == 0) {
      setenv("HOME", home.c_str(), 1);
      setenv("TERM", "dumb", 1);
      execl(KDELTA_PROGRAM, KDELTA_PROGRAM, "chat", "models/tiny-k3", "-q", nullptr);
      _exit(99);
    }
  }
  ~Terminal() {
    if (child_ > 0) kill(child_, SIGKILL), waitpid(child_, nullptr, 0);
    close(fd_);
  }
  void type(const std::string& keys) { ASSERT_EQ(write(fd_, keys.data(), keys.size()), std::ssize(keys)); }
  // Reads until `text` was shown; a minute without a byte is a failure.
  bool wait_for(const std::string& text) {
    while (shown_.find(text) == std::string::npos) {
      pollfd p{.fd = fd_, .events = POLLIN, .revents = 0};
      char buffer[1024];
      if (poll(&p, 1, 60'000) <= 0) return false;
      const ssize_t n = read(fd_, buffer, sizeof(buffer));
      if (n <= 0) return false;
      shown_.append(buffer, static_cast<size_t>(n));
    }
    shown_.erase(0, shown_.find(text) + text.size());
    return true;
  }
  int wait_for_end() {
    int status = 0;
    waitpid(std::exchange(child_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  int fd_ = -1;
  pid_t child_ = -1;
  std::string shown_;
};

TEST(ChatOnATerminal, KeepsItsHistoryThroughCtrlCAtThePrompt) {
  if (!KDELTA_HAS_HISTORY) GTEST_SKIP() << "built without libedit: lines have no history";
  std::string home = testing::TempDir() + "kdelta_home_XXXXXX";
  ASSERT_NE(mkdtemp(home.data()), nullptr);
  Terminal t(home);
  ASSERT_TRUE(t.wait_for("> "));
  t.type("/nonesuch\n");
  ASSERT_TRUE(t.wait_for("/nonesuch: unknown"));
  ASSERT_TRUE(t.wait_for("> "));
  t.type("\x03");
  EXPECT_EQ(t.wait_for_end(), 130);
  std::ifstream file(home + "/.kdelta_history");
  EXPECT_THAT(std::string(std::istreambuf_iterator<char>(file), {}), HasSubstr("/nonesuch"));
  fs::remove_all(home);
}

}  // namespace
}  // namespace kdelta::test
