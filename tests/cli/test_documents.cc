// What is written from the options beside --help: the manual page, the completions; and flags that come from a file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>

#include "kdelta/io/json.h"
#include "tests/cli/run_program.h"

namespace kdelta::test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

const char* const kCommands[] = {"run",        "generate", "serve",  "chat",     "inspect",     "tokenize",
                                 "perplexity", "bench",    "logits", "quantize", "bench serve", "completions"};

// Every "--flag" at the head of an entry of a command's help.
std::set<std::string> flags_of(const std::string& command) {
  const std::string help = run_program(command + " --help").out;
  std::set<std::string> flags;
  size_t end = 0;
  for (size_t begin = 0; begin < help.size(); begin = end + 1) {
    end = std::min(help.find('\n', begin), help.size());
    std::string line = help.substr(begin, end - begin);
    if (line.find_first_not_of(' ') == std::string::npos || line[line.find_first_not_of(' ')] != '-') continue;
    line = line.substr(line.find_first_not_of(' '));
    line = line.substr(0, line.find(' '));  // "-n,--max-tokens,--predict"
    for (size_t at = line.find("--"); at != std::string::npos; at = line.find("--", at + 2))
      flags.insert(line.substr(at, line.find_first_of(",{", at) - at));  // "--no-warmup{false}"
  }
  return flags;
}

std::string without(std::string text, const std::string& what) {
  for (size_t at; (at = text.find(what)) != std::string::npos;) text.erase(at, what.size());
  return text;
}

TEST(Documents, EveryFlagOfEveryCommandIsInTheManualPageAndInEachShellsCompletions) {
  const std::string page = without(run_program("manual").out, "\\");
  const std::string bash = run_program("completions bash").out, zsh = run_program("completions zsh").out,
                    fish = run_program("completions fish").out;
  for (const std::string command : kCommands) {
    const std::set<std::string> flags = flags_of(command);
    EXPECT_GE(flags.size(), 1u) << command;
    std::string title = ".SH KDELTA " + command;
    for (char& c : title) c = static_cast<char>(std::toupper(c));
    const size_t begin = page.find(title + "\n");
    ASSERT_NE(begin, std::string::npos) << title;
    const std::string section = page.substr(begin, page.find("\n.SH", begin) - begin);
    const size_t in_bash = bash.find("    '" + command + "')\n"), in_zsh = zsh.find("    '" + command + "') ");
    ASSERT_NE(in_bash, std::string::npos) << command;
    ASSERT_NE(in_zsh, std::string::npos) << command;
    for (const std::string& flag : flags) {
      EXPECT_THAT(section, HasSubstr("fB" + flag + "fR")) << command;
      EXPECT_THAT(bash.substr(in_bash, bash.find(";;\n", bash.find("if [[", in_bash)) - in_bash), HasSubstr(flag))
          << command;
      EXPECT_THAT(zsh.substr(in_zsh, zsh.find(" ;;\n", in_zsh) - in_zsh), HasSubstr(flag + "[")) << command;
      EXPECT_THAT(fish, HasSubstr("-l " + flag.substr(2) + " ")) << command;
    }
  }
  EXPECT_EQ(run_program("completions tcsh").status, 2);
}

TEST(Documents, TheManualPageIsRoffWithoutAWarning) {
  if (std::system("command -v groff >/dev/null") != 0) GTEST_SKIP() << "groff is not installed";
  const Result r = run_program("manual | groff -man -ww -Tutf8 2>&1 >/dev/null | cat");
  EXPECT_EQ(r.out, "");
}

// What Tab gives behind these words, the last of which is being typed.
std::string completed(const std::vector<std::string>& words) {
  std::string list;
  for (const std::string& w : words) list += " '" + w + "'";
  const fs::path script = fs::path(testing::TempDir()) / ("kdelta_complete_" + std::to_string(getpid()) + ".bash");
  std::ofstream(script) << run_program("completions bash").out << "COMP_WORDS=(kdelta" << list
                        << ")\nCOMP_CWORD=" << words.size() << "\n_kdelta\necho \"${COMPREPLY[@]}\"\n";
  FILE* pipe = popen(("bash " + script.string()).c_str(), "r");
  char buffer[4096];
  std::string out;
  for (size_t n; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) out.append(buffer, n);
  EXPECT_EQ(pclose(pipe), 0);
  fs::remove(script);
  return out;
}

TEST(Documents, BashCompletesCommandsFlagsValuesAndPaths) {
  EXPECT_EQ(completed({"per"}), "perplexity\n");
  EXPECT_EQ(completed({"run", "--max-n"}), "--max-num-batched-tokens --max-num-seqs\n");
  EXPECT_EQ(completed({"run", "--dtype", "f"}), "fp32 float32\n");
  EXPECT_EQ(completed({"run", "models/tiny-k3-d"}), "models/tiny-k3-draft\n");
  EXPECT_EQ(completed({"generate", "-i", "READ"}), "README.md\n");
  EXPECT_EQ(completed({"run", "--seed", "RE"}), "\n") << "a number has no completion";
  EXPECT_EQ(completed({"bench", "serve", "--request-r"}), "--request-rate\n");
  EXPECT_EQ(completed({"bench", "--request-r"}), "\n");
  EXPECT_EQ(completed({"completions", "z"}), "zsh\n");
}

TEST(Documents, InstallingTheProgramInstallsItsPageAndCompletions) {
  const fs::path prefix = fs::path(testing::TempDir()) / ("kdelta_install_" + std::to_string(getpid()));
  ASSERT_EQ(std::system(("cmake --install " KDELTA_BUILD_FOLDER " --component program --prefix " + prefix.string() +
                         " >/dev/null")
                            .c_str()),
            0);
  EXPECT_TRUE(fs::exists(prefix / "bin/kdelta"));
  for (const auto& [path, words] :
       {std::pair("man/man1/kdelta.1", "manual"), std::pair("bash-completion/completions/kdelta", "completions bash"),
        std::pair("zsh/site-functions/_kdelta", "completions zsh"),
        std::pair("fish/vendor_completions.d/kdelta.fish", "completions fish")}) {
    std::ifstream file(prefix / "share" / path);
    const std::string text(std::istreambuf_iterator<char>(file), {});
    EXPECT_EQ(text, run_program(words).out) << path;
    EXPECT_NE(text, "") << path;
  }
  fs::remove_all(prefix);
}

class ConfigFile : public testing::Test {
 protected:
  ~ConfigFile() override { fs::remove(path_); }
  Result run(const std::string& json, const std::string& flags = "", const std::string& variables = "") const {
    std::ofstream(path_) << json;
    return run_program("run --ids 5 --ignore-eos --json -q --config " + path_.string() + " " + flags, "</dev/null",
                       variables);
  }
  int64_t tokens(const std::string& json, const std::string& flags = "", const std::string& variables = "") const {
    const Result r = run(json, flags, variables);
    return r.status == 0 ? std::ssize(parse_json(r.out, {"run"}).find("tokens")->array()) : -r.status;
  }
  fs::path path_ = fs::path(testing::TempDir()) / ("kdelta_config_" + std::to_string(getpid()) + ".json");
};

TEST_F(ConfigFile, GivesFlagsWhereNeitherTheEnvironmentNorTheCommandLineDoes) {
  const std::string three = R"({"model": "models/tiny-k3", "max-tokens": 3, "exact": true})";
  EXPECT_EQ(tokens(three), 3);
  EXPECT_EQ(tokens(three, "-n 2"), 2);
  EXPECT_EQ(tokens(three, "", "KDELTA_ARG_PREDICT=4"), 4);
  EXPECT_EQ(tokens(three, "-n 2", "KDELTA_ARG_PREDICT=4"), 2);
  EXPECT_EQ(tokens(R"({"model": "nowhere", "predict": 1})", "-m models/tiny-k3"), -2) << "a wrong value is refused";
  const Result bias =
      run(R"({"model": "models/tiny-k3", "max-tokens": 1, "logit-bias": ["6=100", "7=50"], "temp": 0})");
  EXPECT_THAT(bias.out, HasSubstr("\"tokens\":[6]")) << bias.err;
  const Result typed =
      run(R"({"model": "models/tiny-k3", "max-tokens": 1, "logit-bias": ["6=100"], "temp": 0})", "--logit-bias 7=99");
  EXPECT_THAT(typed.out, HasSubstr("\"tokens\":[7]")) << "a list that is typed replaces the file's";
}

TEST_F(ConfigFile, IsRefusedByTheMemberThatIsNoFlagOrHoldsNoValueOfIt) {
  for (const auto& [json, told] : std::initializer_list<std::pair<const char*, const char*>>{
           {"{\"max-tokns\": 3}", "max-tokns: no flag of run for a file; did you mean max-tokens?"},
           {"{\"config\": \"x\"}", "config: no flag of run for a file"},
           {"{\"host\": \"x\"}", "host: no flag of run for a file"},
           {"{\"max-tokens\": [3]}", "max-tokens: array of 1, expected one value"},
           {"{\"max-tokens\": true}", "max-tokens: true, expected text or a number"},
           {"{\"exact\": 1}", "exact: integer 1, expected true or false"},
           {"[]", "array of 0, expected an object of flags"},
           {"{", "--config: "}}) {
    const Result r = run(json, "-m models/tiny-k3");
    EXPECT_EQ(r.status, 2) << json;
    EXPECT_THAT(r.err, AllOf(HasSubstr(told), HasSubstr(path_.string()))) << json;
  }
  EXPECT_THAT(run_program("run --config nowhere.json").err, HasSubstr("nowhere.json"));
}

}  // namespace
}  // namespace kdelta::test
