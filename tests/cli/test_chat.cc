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

TEST_F(ChatFiles, OfAStateThatDoesNotFitOnlyTheTextIsLoadedAndComputedAgain) {
  const std::string state = path() + ".state";
  const auto noted = [&](const std::string& flags, const std::string& why) {
    const std::string lines = "/load " + path() + "\nAnd who was his son?\n/stats\n";
    const Result r = talk(lines, "-q " + flags);
    EXPECT_EQ(r.status, 0);
    EXPECT_THAT(r.err, testing::AllOf(HasSubstr("note: " + state + ": " + why),
                                      HasSubstr("; the conversation is loaded, and its next turn computes all of it"),
                                      HasSubstr(" 0 of them from earlier turns")));
    fs::rename(state, state + ".away");
    EXPECT_EQ(r.out, talk(lines, "-q " + flags).out) << "as from the text alone";
    fs::rename(state + ".away", state);
  };
  noted("--state-dtype bf16", "recurrent of layer 0: F32");
  noted("--load-format dummy", "of another model, number ");
  fs::resize_file(state, fs::file_size(state) - 1);
  noted("", "torn: ");
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
  std::ofstream(folder_ + "/kept") << "kept";
  fs::permissions(folder_ + "/kept", fs::perms{0444});
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
           {"Hello\n/save " + folder_ + "/kept", "/kept: is write-protected"},
           {"Hello\n/save /nonesuch/x", "/nonesuch/x: cannot create"}}) {
    const Result r = talk(line + "\n", "-q");
    EXPECT_EQ(r.status, 1) << line;
    EXPECT_THAT(r.err, HasSubstr(why)) << line;
  }
  EXPECT_EQ(fs::file_size(folder_ + "/kept"), 4u);
}

// The program on a pseudo terminal.
class Terminal {
 public:
  // `variables`: "NAME=VALUE".
  explicit Terminal(const std::string& home, std::vector<std::string> variables = {}, const std::string& flag = "-q") {
    child_ = forkpty(&fd_, nullptr, nullptr, nullptr);
    if (child_ == 0) {
      setenv("HOME", home.c_str(), 1);
      setenv("TERM", "dumb", 1);
      for (std::string& v : variables) putenv(v.data());
      execl(KDELTA_PROGRAM, KDELTA_PROGRAM, "chat", "models/tiny-k3", "-q", flag.c_str(), nullptr);
      _exit(99);
    }
  }
  ~Terminal() {
    if (child_ > 0) kill(child_, SIGKILL), waitpid(child_, nullptr, 0);
    close(fd_);
  }
  void signal(int number) const { kill(child_, number); }
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
  // Its exit code; 0 - the seconds waited if it goes on running.
  int wait_for_end() {
    constexpr int kSeconds = 60;
    for (int i = 0; i < 100 * kSeconds; ++i) {
      int status = 0;
      if (waitpid(child_, &status, WNOHANG) == child_) {
        child_ = -1;
        return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      }
      usleep(10'000);
    }
    return -kSeconds;
  }

 private:
  int fd_ = -1;
  pid_t child_ = -1;
  std::string shown_;
};

class ChatOnATerminal : public testing::Test {
 protected:
  ChatOnATerminal() { EXPECT_NE(mkdtemp(home_.data()), nullptr); }
  ~ChatOnATerminal() override { fs::remove_all(home_); }
  std::string text_of(const std::string& name) const {
    std::ifstream file(home_ + "/" + name);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::string home_ = testing::TempDir() + "kdelta_home_XXXXXX";
};

TEST_F(ChatOnATerminal, KeepsItsHistoryThroughCtrlCAtThePromptUnlessAskedNotTo) {
  if (!KDELTA_HAS_HISTORY) GTEST_SKIP() << "built without libedit: lines have no history";
  for (const char* flag : {"--no-history", "-q"}) {
    Terminal t(home_, {}, flag);
    ASSERT_TRUE(t.wait_for("> "));
    t.type("/nonesuch\n");
    ASSERT_TRUE(t.wait_for("/nonesuch: unknown"));
    ASSERT_TRUE(t.wait_for("> "));
    t.type("\x03");
    ASSERT_TRUE(t.wait_for("/save FILE keeps it"));
    t.type("\x03");
    EXPECT_EQ(t.wait_for_end(), 130);
    EXPECT_EQ(fs::exists(home_ + "/.kdelta_history"), flag == std::string("-q"));
  }
  EXPECT_THAT(text_of(".kdelta_history"), HasSubstr("/nonesuch"));
}

// A service manager asks whether it ended by the signal that it sent: 128 and the signal's number, as a shell has it.
TEST_F(ChatOnATerminal, ASignalThatAsksForTheEndAtThePromptIsInTheExitCode) {
  for (const int number : {SIGTERM, SIGHUP}) {
    Terminal t(home_, {}, "-q");
    ASSERT_TRUE(t.wait_for("> "));
    t.signal(number);
    EXPECT_EQ(t.wait_for_end(), 128 + number);
  }
}

TEST_F(ChatOnATerminal, EveryCharacterTypedArrivesWhateverTheLocale) {
  const std::string typed = "na\xc3\xafve \xe8\xaa\x9e \xf0\x9f\x99\x82 e\xcc\x81";
  // A name that no system has, and a system that has no locale at all.
  for (const std::vector<std::string>& locale : {std::vector<std::string>{"LC_ALL=C"},
                                                 {"LC_ALL=C.UTF-8"},
                                                 {"LC_ALL=xx_YY.UTF-8"},
                                                 {"LC_ALL=C", "LOCPATH=/nonesuch"}}) {
    Terminal t(home_, locale);
    ASSERT_TRUE(t.wait_for("> "));
    t.type("/system " + typed + "\n");
    t.type("/save " + home_ + "/talk\n/stats\n");
    ASSERT_TRUE(t.wait_for("no answer yet"));
    ASSERT_TRUE(t.wait_for("> "));
    t.type("\x04");
    EXPECT_EQ(t.wait_for_end(), 0);
    EXPECT_EQ(text_of("talk"), "{\"role\":\"system\",\"content\":\"" + typed + "\"}\n") << locale.back();
  }
}

TEST_F(ChatOnATerminal, ACtrlDTypedDuringAnAnswerEndsTheProgramBehindIt) {
  Terminal t(home_, {"KDELTA_ARG_IGNORE_EOS=1", "KDELTA_ARG_MAX_TOKENS=200", "KDELTA_ARG_THREADS=1"});
  ASSERT_TRUE(t.wait_for("> "));
  t.type("What does light mean?\n");
  ASSERT_TRUE(t.wait_for("light mean?"));
  usleep(20'000);
  t.type("\x04");
  EXPECT_EQ(t.wait_for_end(), 0);
}

TEST_F(ChatOnATerminal, ABackspaceTakesAWholeCharacterAndABrokenOneIsSeen) {
  if (!KDELTA_HAS_HISTORY) GTEST_SKIP() << "built without libedit: the terminal edits its lines";
  Terminal t(home_, {"LC_ALL=C"});
  ASSERT_TRUE(t.wait_for("> "));
  t.type(
      "/system a\xc3\xaf\x7f"
      "b\xef"
      "c\n/save " +
      home_ + "/talk\n/exit\n");
  EXPECT_EQ(t.wait_for_end(), 0);
  EXPECT_EQ(text_of("talk"),
            "{\"role\":\"system\",\"content\":\"ab\xef\xbf\xbd"
            "c\"}\n");
}

TEST_F(ChatOnATerminal, CtrlCClearsTheLineAndNeverEndsTheProgramUnlessTwiceInARowOnAnEmptyOne) {
  Terminal t(home_);
  ASSERT_TRUE(t.wait_for("> "));
  t.type("/system kept\n");
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(t.wait_for("> "));
    t.type("/exit");
    ASSERT_TRUE(t.wait_for("/exit"));  // a terminal forgets at Ctrl-C what nobody has read
    t.type("\x03");
    ASSERT_TRUE(t.wait_for("> "));
    t.type("\x03");
    ASSERT_TRUE(t.wait_for("/save FILE keeps it"));
    ASSERT_TRUE(t.wait_for("> "));
    t.type("/stats\n");
    ASSERT_TRUE(t.wait_for("no answer yet"));
  }
  t.type("/save " + home_ + "/talk\n/exit\n");
  EXPECT_EQ(t.wait_for_end(), 0);
  EXPECT_THAT(text_of("talk"), HasSubstr("kept"));
}

TEST_F(ChatOnATerminal, HoweverOftenCtrlCIsPressedInAnAnswerItEndsNoMoreThanTheAnswer) {
  Terminal t(home_, {"KDELTA_ARG_IGNORE_EOS=1", "KDELTA_ARG_MAX_TOKENS=-1"});
  ASSERT_TRUE(t.wait_for("> "));
  t.type("What does light mean?\n");
  ASSERT_TRUE(t.wait_for("light mean?"));
  usleep(300'000);
  t.type("\x03\x03\x03");
  ASSERT_TRUE(t.wait_for("> "));
  t.type("/stats\n");
  ASSERT_TRUE(t.wait_for("ended by cancelled"));
  t.type("/exit\n");
  EXPECT_EQ(t.wait_for_end(), 0);
}

TEST(Chat, TextThatIsNoUtf8IsRefusedByItsPlaceWhereverItComesFrom) {
  const std::string bad = testing::TempDir() + "kdelta_latin1_" + std::to_string(getpid());
  std::ofstream(bad) << "caf\xe9 au lait\n";
  const std::string word = "\"$(cat " + bad + ")\"";
  for (const auto& [command, name, status] : std::initializer_list<std::tuple<std::string, std::string, int>>{
           {"run models/tiny-k3 -p " + word, "--prompt: ", 2},
           {"run models/tiny-k3 -f " + bad, "--file: '" + bad + "': ", 2},
           {"run models/tiny-k3 <" + bad, "standard input: ", 2},
           {"run models/tiny-k3 --prompts " + bad, "--prompts: line 1: ", 2},
           {"tokenize models/tiny-k3 -p " + word, "--text: ", 2},
           {"perplexity models/tiny-k3 -f " + bad, "--file: '" + bad + "': ", 2},
           {"chat models/tiny-k3 -p " + word, "--prompt: ", 2},
           {"chat models/tiny-k3 -p x --system " + word, "--system: ", 2},
           {"chat models/tiny-k3 -q <" + bad, "line: ", 1}}) {
    const Result r = run_program(command, "");
    EXPECT_EQ(r.status, status) << command;
    EXPECT_EQ(r.out, "") << command;
    EXPECT_THAT(r.err, HasSubstr("kdelta: " + name + "\\xe9 at byte 3 is no UTF-8")) << command;
  }
  fs::remove(bad);
}

TEST(Chat, AnAnswerThatWasCutSaysSoAndQuietlyOnlyWhenThereIsNothingToSee) {
  const auto ask = [](const std::string& flags) {
    return run_program("chat models/tiny-k3 --temp 0 -p 'What does dark mean?' " + flags).err;
  };
  EXPECT_THAT(ask("-n 40"), HasSubstr("note: the answer was cut behind 40 tokens; a larger -n makes room"));
  EXPECT_THAT(ask("-n 40 -c 64 -n -1 --ignore-eos"), HasSubstr("the context is full (a larger -c makes room)"));
  EXPECT_THAT(ask("-n 4 -q"), HasSubstr("cut behind 4 tokens, before it said anything"));
  EXPECT_EQ(ask("-n 40 -q"), "");
  EXPECT_THAT(ask("-n 100"), testing::Not(HasSubstr("cut")));
}

TEST_F(ChatFiles, ASystemMessageOfTheCommandLineThatALoadedConversationLacksIsNoted) {
  const std::string load = "/load " + path() + "\n";
  EXPECT_THAT(talk(load, "--system Briefly.").err,
              HasSubstr("note: --system: the loaded conversation has no system message"));
  EXPECT_THAT(talk(load).err, testing::Not(HasSubstr("--system")));
}

}  // namespace
}  // namespace kdelta::test
