// The program as a person uses it: text alone on stdout, exit codes, errors that say what to do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "tests/e2e/support.h"

namespace kdelta::test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

struct Result {
  int status = -1;
  std::string out, err;
};

// Runs the program with standard input from `in` (a shell redirection) and captures both streams.
Result run_program(const std::string& arguments, const std::string& in = "</dev/null") {
  const fs::path err = fs::temp_directory_path() / ("kdelta_cli_" + std::to_string(getpid()));
  const std::string command = std::string(KDELTA_PROGRAM) + " " + arguments + " 2>" + err.string() + " " + in;
  Result r;
  FILE* pipe = popen(command.c_str(), "r");
  char buffer[4096];
  for (size_t n; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) r.out.append(buffer, n);
  const int status = pclose(pipe);
  r.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  std::ifstream file(err);
  r.err.assign(std::istreambuf_iterator<char>(file), {});
  fs::remove(err);
  return r;
}

constexpr const char* kTiny = "models/tiny-k3";

TEST(Program, RunPrintsTheTextAloneOnStdout) {
  const Result r = run_program(std::string("run ") + kTiny + " -p 'And God said' -n 64 --temp 0 --dtype fp32");
  EXPECT_EQ(r.status, 0);
  EXPECT_THAT(r.out, testing::StartsWith(" unto him, I am the God of Abraham"));
  EXPECT_THAT(r.err, AllOf(HasSubstr("memory:"), HasSubstr("tokens/s")));
  const Result quiet = run_program(std::string("run ") + kTiny + " -q -p 'And God said' -n 64 --temp 0 --dtype fp32");
  EXPECT_EQ(quiet.out, r.out);
  EXPECT_EQ(quiet.err, "");
}

TEST(Program, ThePromptMayComeFromStdinFileOrIds) {
  const std::string tail = " -q -n 8 --temp 0";
  const Result flag = run_program(std::string("run ") + kTiny + " -p 'And God said'" + tail);
  EXPECT_EQ(run_program(std::string("run ") + kTiny + tail, "<tests/golden/README.md").status, 0);
  const Result ids = run_program(std::string("tokenize ") + kTiny + " -p 'And God said' --ids");
  EXPECT_EQ(run_program(std::string("run ") + kTiny + " --ids '" + ids.out + "'" + tail).out, flag.out);
}

TEST(Program, JsonHoldsTextTokensAndReason) {
  const Result r = run_program(std::string("run ") + kTiny + " -p 'And' -n 3 --json --seed 5 --logprobs 1");
  EXPECT_EQ(r.status, 0);
  EXPECT_THAT(r.out, AllOf(HasSubstr("\"finish_reason\":\"length\""), HasSubstr("\"seed\":5"),
                           HasSubstr("\"prompt_tokens\":1"), HasSubstr("\"logprobs\":[{")));
}

TEST(Program, WrongUsageIsExitCodeTwoAndFailureIsOne) {
  EXPECT_EQ(run_program("").status, 2);
  EXPECT_EQ(run_program("nonesuch").status, 2);
  EXPECT_EQ(run_program("run").status, 2);
  EXPECT_EQ(run_program("run /nowhere -p x").status, 2);
  EXPECT_EQ(run_program(std::string("run ") + kTiny + " -p a -f b").status, 2);
  Result r = run_program(std::string("run ") + kTiny + " -p x --dtype int3");
  EXPECT_EQ(r.status, 1);
  EXPECT_EQ(r.err, "kdelta: dtype: 'int3', accepted: bf16, fp32\n");
  r = run_program(std::string("run ") + kTiny + " -p x --force kda:nonesuch");
  EXPECT_EQ(r.status, 1);
  EXPECT_THAT(r.err, HasSubstr("forced variant 'nonesuch', known:"));
  r = run_program(std::string("run ") + kTiny + " -p x --top-p 2");
  EXPECT_EQ(r.status, 1);
  EXPECT_THAT(r.err, HasSubstr("top_p"));
  EXPECT_EQ(run_program("--help").status, 0);
  EXPECT_THAT(run_program("--version").out, testing::StartsWith("kdelta 0."));
}

TEST(Program, EveryInstructionSetGivesTheSameGreedyTextInFp32) {
  const std::string base = std::string("run ") + kTiny + " -q -p 'And God said' -n 24 --temp 0 --dtype fp32";
  const std::string want = run_program(base + " --isa portable").out;
  EXPECT_FALSE(want.empty());
  for (const char* isa : {"avx2", "avx512", "avx512_bf16", "amx"})
    EXPECT_EQ(run_program(base + " --isa " + isa).out, want) << isa;
}

TEST(Program, FlagsAreEnvironmentVariablesToo) {
  ASSERT_EQ(setenv("KDELTA_ARG_MAX_TOKENS", "2", 1), 0);
  const Result r = run_program(std::string("run ") + kTiny + " -p 'And' --json");
  unsetenv("KDELTA_ARG_MAX_TOKENS");
  EXPECT_THAT(r.out, HasSubstr("\"finish_reason\":\"length\""));
  EXPECT_EQ(std::count(r.out.begin(), r.out.begin() + static_cast<int64_t>(r.out.find("finish")), ','), 3) << r.out;
}

TEST(Program, ChatAnswersAndHoldsAConversationOverAPipe) {
  const Result once = run_program(std::string("chat ") + kTiny + " -p Hello --temp 0 --json");
  EXPECT_EQ(once.status, 0);
  EXPECT_THAT(once.out, AllOf(HasSubstr("\"finish_reason\":\"stop\""), HasSubstr("\"content\":\"")));
  const Result talk = run_program(std::string("chat ") + kTiny + " --temp 0 -q",
                                  "<<'EOF'\nHello\n/think off\nHello\n/nonesuch\n/exit\nEOF\n");
  EXPECT_EQ(talk.status, 0);
  EXPECT_THAT(talk.err, HasSubstr("/nonesuch: unknown"));
  EXPECT_EQ(std::count(talk.out.begin(), talk.out.end(), '\n'), 2) << talk.out;
}

TEST(Program, InspectReadsHeadersAloneAndNamesEveryKernel) {
  const Result r = run_program(std::string("inspect ") + kTiny + " --ops --tensors");
  EXPECT_EQ(r.status, 0);
  EXPECT_THAT(r.out, AllOf(HasSubstr("Kimi K3"), HasSubstr("memory plan"), HasSubstr("grouped_linear"),
                           HasSubstr("w1.weight_packed")));
  const Result json = run_program(std::string("inspect ") + kTiny + " --json");
  EXPECT_THAT(json.out, testing::StartsWith("{\"kind\":\"Kimi K3\""));
}

TEST(Program, ModelsWithoutTokenizerTakeIdsAndSayWhyTextFails) {
  EXPECT_EQ(run_program("run tests/golden/k3_a --ids 1,2,3 -n 4 --temp 0 -q").status, 0);
  const Result r = run_program("run tests/golden/k3_a -p x");
  EXPECT_EQ(r.status, 1);
  EXPECT_THAT(r.err, AllOf(HasSubstr("no tokenizer"), HasSubstr("tiktoken.model")));
  EXPECT_EQ(run_program("run tests/golden/k3_a --ids 1,2,3 -n 4 -q --load-format dummy").status, 0);
}

TEST(Program, LogitsFileHoldsWhatTheGoldensHold) {
  const fs::path out = fs::temp_directory_path() / ("kdelta_logits_" + std::to_string(getpid()) + ".safetensors");
  const TensorFile golden("tests/golden/linear_a/golden.safetensors");
  std::string ids;
  for (int32_t id : golden.ints("tokens.17")) ids += std::to_string(id) + ",";
  const Result r = run_program("logits tests/golden/linear_a --dtype fp32 --chunk 5 --dump layers,router,state --ids " +
                               ids + " --out " + out.string());
  ASSERT_EQ(r.status, 0) << r.err;
  const TensorFile ours(out.string());
  const auto compare = [&](const std::string& name, const std::string& want_name) {
    const auto got = ours.floats(name), want = golden.floats(want_name);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-4f) << name << " " << i;
  };
  compare("logits", "fp32.logits.17");
  compare("layer_out", "fp32.layer_out.17");
  EXPECT_EQ(ours.info("router_idx").shape, (std::vector<int64_t>{4, 17, 2}));
  EXPECT_EQ(ours.info("state.0.recurrent").shape, (std::vector<int64_t>{2, 128, 128}));
  fs::remove(out);
}

TEST(Program, OutputThatCannotBeWrittenIsAFailureAndADeviceIsNeverReplaced) {
  EXPECT_EQ(run_program(std::string("run ") + kTiny + " -q -p And -n 2", "</dev/null >/dev/full").status, 1);
  for (const char* target : {"/dev/null", "/tmp", "''"}) {
    const Result r = run_program(std::string("logits ") + kTiny + " --ids 5,6 --out " + target);
    EXPECT_EQ(r.status, 1) << target;
  }
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

TEST(Program, ValuesOutOfRangeAreRefusedByName) {
  const std::string base = std::string("run ") + kTiny + " -p x ";
  EXPECT_THAT(run_program(base + "-c 9223372036854775807").err, HasSubstr("max_length"));
  EXPECT_THAT(run_program(base + "-b 9223372036854775807").err, HasSubstr("token_budget"));
  EXPECT_THAT(run_program(base + "-t 100000").err, HasSubstr("threads: 100000"));
  EXPECT_THAT(run_program(base + "--force nope:avx2").err, HasSubstr("no op 'nope'"));
  EXPECT_THAT(run_program(base + "--logit-bias 99999999999=1").err, HasSubstr("logit-bias"));
  EXPECT_EQ(run_program(std::string("bench ") + kTiny + " -d -512").status, 2);
  EXPECT_EQ(run_program(std::string("chat ") + kTiny + " --json").status, 2);
}

TEST(Program, BenchPrintsRowsInEveryFormat) {
  const std::string base = std::string("bench ") + kTiny + " -p 16 -n 4 -r 2 --no-warmup -o ";
  EXPECT_THAT(run_program(base + "md").out, AllOf(HasSubstr("| pp16 |"), HasSubstr("| tg4 |")));
  EXPECT_THAT(run_program(base + "json").out,
              AllOf(testing::StartsWith("[{"), HasSubstr("\"samples_ts\":["), testing::EndsWith("]\n")));
  EXPECT_THAT(run_program(base + "csv").out, HasSubstr(",pp16,16,0,2,"));
}

TEST(Program, InterruptStopsTheAnswerWithExitCode130) {
  const pid_t child = fork();
  if (child == 0) {
    (void)!freopen("/dev/null", "w", stdout);
    (void)!freopen("/dev/null", "w", stderr);
    execl(KDELTA_PROGRAM, KDELTA_PROGRAM, "run", kTiny, "-p", "And", "-n", "30000", "--ignore-eos", nullptr);
    _exit(99);
  }
  sleep(2);
  kill(child, SIGINT);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 130);
}

TEST(Program, PerplexityAcceptsTextAndIds) {
  const Result r = run_program(std::string("perplexity ") + kTiny + " --json",
                               "<<'EOF'\nAnd God said, Let there be light: and there was light.\nEOF\n");
  EXPECT_EQ(r.status, 0);
  EXPECT_THAT(r.out, HasSubstr("{\"perplexity\":"));
  EXPECT_EQ(run_program(std::string("perplexity ") + kTiny + " --ids 7").status, 1);
}

}  // namespace
}  // namespace kdelta::test
