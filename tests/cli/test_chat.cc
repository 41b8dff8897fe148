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
