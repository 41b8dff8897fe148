#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <map>
#include <thread>

#include "kdelta/io/json.h"
#include "tests/cli/run_program.h"

namespace kdelta::test {
namespace {

using testing::HasSubstr;

TEST(QuantizeCommand, PrintsSizesAloneOnStdoutAndADryRunWritesNothing) {
  std::string folder = testing::TempDir() + "kdelta_cli_quantize_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string out = folder + "/q";
  const Result dry = run_program("quantize tests/golden/linear_a " + out + " --dry-run --json");
  EXPECT_EQ(dry.status, 0) << dry.err;
  EXPECT_EQ(dry.err, "");
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  const Json told = parse_json(dry.out, {.name = "stdout"});
  EXPECT_EQ(told.find("groups")->array().size(), 3u);
  const Result done = run_program("quantize tests/golden/linear_a --out " + out);
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_THAT(done.out, testing::AllOf(HasSubstr("9 matrices to MXFP8"), HasSubstr("96 matrices to MXFP4")));
  EXPECT_EQ(done.err, "written to " + out + "\n");
  const Result inspected = run_program("inspect " + out);
  EXPECT_EQ(inspected.status, 0);
  EXPECT_THAT(inspected.out, testing::ContainsRegex("attention +MXFP8 .* inputs MXFP8 floor\n"));
  EXPECT_THAT(inspected.out, testing::ContainsRegex("routed experts +MXFP4 .*B\n"));
  const Result again = run_program("quantize tests/golden/linear_a " + out);
  EXPECT_EQ(again.status, 2);
  EXPECT_THAT(again.err, HasSubstr("--out: " + out + " exists"));
  const Result dry_again = run_program("quantize tests/golden/linear_a " + out + " --dry-run");
  EXPECT_EQ(dry_again.status, 2);
  EXPECT_EQ(dry_again.err, again.err);
  std::filesystem::remove_all(folder);
}

TEST(QuantizeCommand, ADryRunSaysHowManyFilesOfAStoppedRunWouldBeKept) {
  std::string folder = testing::TempDir() + "kdelta_cli_dry_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string command = "quantize models/tiny-k3 " + folder + "/q";
  // Blocks of 512 bytes: the first file of the result is smaller, the second is not.
  const Result stopped = run_program(command, "</dev/null", "ulimit -f 3000;");
  EXPECT_EQ(stopped.status, 1);
  EXPECT_THAT(stopped.err, HasSubstr("model-00002-of-000007.safetensors: cannot write"));
  const Result dry = run_program(command + " --dry-run");
  EXPECT_EQ(dry.status, 0);
  EXPECT_EQ(dry.err, "1 of 7 files are there from an earlier run and kept if they are as it left them\n");
  EXPECT_EQ(run_program(command).err, "1 of 7 files were there from an earlier run\nwritten to " + folder + "/q\n");
  std::filesystem::remove_all(folder);
}

TEST(QuantizeCommand, WhatIsLeftAsItIsHasALineThatSaysWhy) {
  const std::string command = "quantize models/tiny-k3 --dry-run ";
  EXPECT_THAT(run_program(command).out, testing::AllOf(testing::ContainsRegex("routed experts +MXFP4 already +2.1 MB"),
                                                       testing::ContainsRegex("the rest +as it is ")));
  EXPECT_THAT(run_program(command + "--experts keep").out, testing::ContainsRegex("routed experts +as it is +2.1 MB"));
  const Result none = run_program(command + "--qkv keep");
  EXPECT_EQ(none.status, 2);
  EXPECT_THAT(none.err, HasSubstr("nothing would be quantised"));
}

// What is written for others is said to be so when it is written and when it is loaded.
TEST(QuantizeCommand, Int8IsSaidToBeForOtherEngines) {
  std::string folder = testing::TempDir() + "kdelta_cli_int8_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string out = folder + "/q";
  const Result done = run_program("quantize tests/golden/linear_a --qkv int8 --experts keep --out " + out);
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_EQ(done.err, "written to " + out + "\nint8 is for other engines: kdelta does not load it\n");
  const Result inspected = run_program("inspect " + out);
  EXPECT_NE(inspected.status, 0);
  EXPECT_THAT(inspected.err, testing::AllOf(HasSubstr("config_groups.group_0.weights: 8-bit int"),
                                            HasSubstr("which are for other engines")));
  EXPECT_THAT(inspected.out, testing::ContainsRegex("attention +int8 +18 tensors .*B  inputs int8 by token\n"));
  EXPECT_THAT(inspected.out, testing::ContainsRegex("routed experts +BF16 .*B\n"));
  EXPECT_THAT(inspected.out, testing::Not(HasSubstr("memory plan")));
  const Result json = run_program("inspect --json " + out);
  EXPECT_NE(json.status, 0);
  EXPECT_THAT(json.out, testing::AllOf(HasSubstr(R"("dtype":"int8","inputs":"int8 by token")"),
                                       HasSubstr(R"("refused":)"), testing::Not(HasSubstr(R"("memory":)"))));
  std::filesystem::remove_all(folder);
}

std::map<std::string, std::string> contents(const std::string& folder) {
  std::map<std::string, std::string> out;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::ifstream file(entry.path(), std::ios::binary);
    out[entry.path().filename()].assign(std::istreambuf_iterator<char>(file), {});
  }
  return out;
}

// Starts the program and kills it after `after`. True when it was killed before its end.
bool killed(const std::string& model, const std::string& out, std::chrono::microseconds after) {
  const pid_t child = fork();
  if (child == 0) {
    (void)!freopen("/dev/null", "w", stdout);
    (void)!freopen("/dev/null", "w", stderr);
    execl(KDELTA_PROGRAM, KDELTA_PROGRAM, "quantize", model.c_str(), out.c_str(), nullptr);
    _exit(127);
  }
  std::this_thread::sleep_for(after);
  kill(child, SIGKILL);
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status);
}

// SIGKILL at many moments: there is the whole result or none, and the same command always gets there.
TEST(QuantizeCommand, KilledAtAnyMomentItLeavesNothingThatLoadsAndGoesOn) {
  std::string folder = testing::TempDir() + "kdelta_cli_kill_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string model = "models/tiny-k3", whole = folder + "/whole", out = folder + "/q";
  const auto start = std::chrono::steady_clock::now();
  ASSERT_EQ(run_program("quantize " + model + " " + whole).status, 0);
  const auto time = std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - start);
  const auto want = contents(whole);
  int stopped = 0;
  for (int i = 1; i <= 16; ++i) {
    stopped += killed(model, out, time * i / 16) ? 1 : 0;
    // What loads is whole: config.json, without which nothing does, comes last.
    for (const std::string& left : {out, out + ".partial"})
      if (run_program("inspect " + left).status == 0) {
        auto got = contents(left);
        got.erase("kdelta_quantize.json");
        EXPECT_EQ(got, want) << left << " " << i;
      }
    if (i % 4 != 0 && !std::filesystem::exists(out)) continue;  // the next one starts from what this one left
    if (!std::filesystem::exists(out)) {
      EXPECT_EQ(run_program("quantize " + model + " " + out).status, 0) << i;
    }
    EXPECT_EQ(contents(out), want) << i;
    std::filesystem::remove_all(out);
  }
  EXPECT_GE(stopped, 4);
  std::filesystem::remove_all(folder);
}

TEST(QuantizeCommand, WrongFlagsAreWrongUsage) {
  EXPECT_EQ(run_program("quantize models/tiny-k3").status, 2);
  EXPECT_EQ(run_program("quantize models/tiny-k3 /nonexistent/x --qkv int3").status, 2);
  const Result none = run_program("quantize models/tiny-k3 /nonexistent/x --qkv keep");
  EXPECT_EQ(none.status, 2);
  EXPECT_THAT(none.err, HasSubstr("nothing would be quantised"));
  EXPECT_EQ(run_program("quantize models/tiny-k3 /nonexistent/x").status, 1);
}

}  // namespace
}  // namespace kdelta::test
