// Many requests from the command line: files of them, drafts, what a step runs and why.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "kdelta/io/json.h"
#include "tests/cli/run_program.h"

namespace kdelta::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class Generate : public testing::Test {
 protected:
  Generate() : folder_(std::filesystem::temp_directory_path() / ("kdelta_generate_" + std::to_string(getpid()))) {
    std::filesystem::create_directory(folder_);
  }
  ~Generate() override { std::filesystem::remove_all(folder_); }
  std::string path(const char* name) const { return folder_ / name; }
  static std::string text(const std::string& file) {
    std::ifstream in(file);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  Result generate(const std::string& more = "") const {
    return run_program("generate models/tiny-k3 --dtype fp32 -i " + path("in") + " -o " + path("out") + " " + more);
  }
  std::filesystem::path folder_;
};

TEST_F(Generate, AnswersEveryRequestOfAFileAndSaysHowFar) {
  std::ofstream(path("in")) << R"({"custom_id":"a","body":{"prompt":"And God said","max_tokens":8,"temperature":0}})"
                            << '\n'
                            << R"({"custom_id":"b","url":"/v1/chat/completions",)"
                            << R"("body":{"messages":[{"role":"user","content":"Hello"}],"temperature":0}})" << '\n';
  const Result r = generate();
  EXPECT_EQ(r.status, 0);
  EXPECT_EQ(r.out, "");
  EXPECT_THAT(r.err, AllOf(HasSubstr("2/2 requests"), HasSubstr("tokens/s"), HasSubstr("2 answered, 0 failed")));
  const std::string out = text(path("out"));
  EXPECT_THAT(out, AllOf(HasSubstr("\"text\":\" unto him"), HasSubstr("\"content\":\"Peace be unto you.")));
  EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 2);
  const Result again = generate();
  EXPECT_EQ(again.status, 0);
  EXPECT_THAT(again.err, HasSubstr("2 from an earlier run"));
  EXPECT_EQ(text(path("out")), out);
}

TEST_F(Generate, ASummaryOfDraftsEndsARunThatHadThem) {
  std::ofstream(path("in")) << R"({"body":{"prompt":"And God said","max_tokens":30,"temperature":0}})" << '\n';
  EXPECT_THAT(generate("--drafts 3 --draft-model models/tiny-k3-draft").err,
              testing::ContainsRegex("1 answered.*\n[1-9][0-9]* drafts, [1-9][0-9]* kept, [0-9]+ steps\n$"));
  std::filesystem::remove(path("out"));
  EXPECT_THAT(generate().err, testing::Not(HasSubstr("drafts,")));
}

TEST_F(Generate, RequestsMayComeFromStandardInputAndAnswersGoToAFile) {
  std::ofstream(path("in")) << R"({"custom_id":"a","body":{"prompt":"And God said","max_tokens":8,"temperature":0}})"
                            << '\n';
  const std::string command = "generate models/tiny-k3 -q -i - -o ";
  for (const bool pipe : {false, true}) {
    std::filesystem::remove(path("out"));
    const Result r =
        run_program(command + path("out"), pipe ? "" : "<" + path("in"), pipe ? "cat " + path("in") + " |" : "");
    EXPECT_EQ(r.status, 0) << r.err;
    EXPECT_THAT(text(path("out")), HasSubstr("\"text\":\" unto him")) << pipe;
  }
  const Result r = run_program(command + "-", "<" + path("in"));
  EXPECT_EQ(r.status, 2);
  EXPECT_EQ(r.out, "");
  EXPECT_THAT(r.err, HasSubstr("--output: -, expected a file"));
  EXPECT_FALSE(std::filesystem::exists("-"));
}

TEST_F(Generate, AWriteProtectedFileOfAnswersIsRefusedBeforeTheModelIsLoaded) {
  std::ofstream(path("in")) << "{}\n";
  std::ofstream(path("out"));
  std::filesystem::permissions(path("out"), std::filesystem::perms{0444});
  const Result r = generate();
  EXPECT_EQ(r.status, 2);
  EXPECT_EQ(r.err, "kdelta: --output: " + path("out") +
                       ": is write-protected; expected another name, or a file that may be written\n");
}

TEST_F(Generate, WhatIsWrongWithItsFilesIsSaidBeforeTheModelIsLoaded) {
  // A checkpoint without weights: who loads it says that first.
  const auto refused = [&](bool pipe) {
    const Result r =
        run_program("generate tests/configs/kimi_k3 -o " + path("out") + " -i " + (pipe ? "-" : path("in")),
                    pipe ? "" : "</dev/null", pipe ? "cat " + path("in") + " |" : "");
    EXPECT_EQ(r.status, 2);
    return r.err;
  };
  const std::string line = R"({"custom_id":"a","body":{"prompt":"x"}})";
  std::ofstream(path("in")) << line << "\n\n" << line << '\n';
  for (const bool pipe : {false, true}) EXPECT_THAT(refused(pipe), HasSubstr("custom_id a twice, in lines 1 and 3"));
  std::ofstream(path("in")) << line << '\n';
  for (const std::string other : {"some text\n", "{\"a\":1}\n", "a note without an end"}) {
    std::ofstream(path("out")) << other;
    EXPECT_THAT(refused(false), HasSubstr("kdelta: --output: " + path("out") + ": line 1: ")) << other;
    EXPECT_EQ(text(path("out")), other);
  }
}

TEST_F(Generate, AnswersOfAnotherPrecisionAreNotTakenForThisOnes) {
  std::ofstream(path("in")) << R"({"custom_id":"a","body":{"prompt":"And God said","max_tokens":8,"temperature":0}})"
                            << '\n';
  ASSERT_EQ(generate().status, 0);
  const std::string out = text(path("out"));
  for (const char* other : {"--dtype bf16", "--state-dtype bf16", "--kda-gate composed"}) {
    const Result r = generate(other);
    EXPECT_EQ(r.status, 2) << other;
    EXPECT_THAT(r.err, HasSubstr("is of another request, model, precision or sampling setting than now")) << other;
  }
  const Result same = generate("--isa portable --kda-gate factored -t 1");
  EXPECT_EQ(same.status, 0) << "last bits alone";
  EXPECT_THAT(same.err, HasSubstr("1 from an earlier run"));
  EXPECT_EQ(text(path("out")), out);
}

TEST_F(Generate, ARequestThatFailsMakesTheExitCodeOne) {
  std::ofstream(path("in")) << "{\"body\":{\"prompt\":[99999]}}\n";
  EXPECT_EQ(generate("-q").status, 1);
  EXPECT_THAT(text(path("out")), HasSubstr("token 99999"));
}

TEST_F(Generate, AFileThatMayNotGrowIsAnErrorThatSaysSo) {
  std::ofstream(path("in")) << R"({"body":{"prompt":"And God said","max_tokens":60,"temperature":0}})"
                            << "\n"
                            << R"({"body":{"prompt":"And God","max_tokens":60,"temperature":0}})" << '\n';
  const Result r =
      run_program("generate models/tiny-k3 -q -i " + path("in") + " -o " + path("out"), "</dev/null", "ulimit -f 1;");
  EXPECT_EQ(r.status, 1);
  EXPECT_THAT(r.err, AllOf(HasSubstr("kdelta: --output: "), HasSubstr("cannot be written: File too large")));
}

TEST_F(Generate, ARequestThatFailsIsTriedAgainAndTheExitCodeStaysOne) {
  std::ofstream(path("in")) << "{\"body\":{\"prompt\":[99999]}}\n";
  EXPECT_EQ(generate("-q").status, 1);
  const Result again = generate();
  EXPECT_EQ(again.status, 1);
  EXPECT_THAT(again.err, HasSubstr("0 answered, 1 failed, 0 from an earlier run"));
}

TEST_F(Generate, SeveralPromptsOfARunAreAnsweredInOrderEachAsAlone) {
  const std::string tail = " -q -n 12 --temp 0.8 --seed 3 --ignore-eos";
  const std::vector<std::string> prompts = {"And God said", "In the beginning", "And"};
  std::string flags, want;
  std::ofstream file(path("prompts"));
  for (const std::string& p : prompts) {
    flags += " -p '" + p + "'";
    file << p << (p == "And" ? "" : "\r\n\n");
    want += run_program("run models/tiny-k3 -p '" + p + "'" + tail).out;
  }
  file.close();
  EXPECT_EQ(run_program("run models/tiny-k3" + flags + tail).out, want);
  EXPECT_EQ(run_program("run models/tiny-k3 --prompts " + path("prompts") + tail).out, want);
  EXPECT_EQ(run_program("run models/tiny-k3 --prompts - -N 2" + tail, "<" + path("prompts")).out, want);
  const Result loud = run_program("run models/tiny-k3 -n 3 --temp 0 --json" + flags);
  EXPECT_EQ(std::count(loud.out.begin(), loud.out.end(), '\n'), 3);
  EXPECT_THAT(loud.out, Not(HasSubstr("_seconds"))) << "they share steps";
  EXPECT_THAT(loud.err, AllOf(HasSubstr("[2 of 3]"), HasSubstr("3 prompts of "), HasSubstr("tokens/s; 0 failed")));
}

TEST_F(Generate, OfSeveralPromptsOneThatFailsIsNamedAndTheOthersAreAnswered) {
  const std::string base = "run models/tiny-k3 -q -c 16 -n 4 --temp 0 --ignore-eos";
  std::string longer = "And God said";
  for (int i = 0; i < 20; ++i) longer += " unto him";
  const Result r = run_program(base + " -p 'And God said' -p '" + longer + "' -p 'And'");
  EXPECT_EQ(r.status, 1);
  EXPECT_THAT(r.err,
              AllOf(HasSubstr("kdelta: prompt 2: prompt: "), HasSubstr("the context holds 16 (--max-model-len)")));
  EXPECT_EQ(r.out, run_program(base + " -p 'And God said'").out + "\n" + run_program(base + " -p 'And'").out);
  EXPECT_EQ(run_program("run models/tiny-k3 --prompts -", "</dev/null").status, 2);
}

TEST_F(Generate, DraftsChangeNothingButTheNumberOfSteps) {
  const std::string base = "run models/tiny-k3 -p 'And God said' -n 48 --temp 0";
  const Result plain = run_program(base), lookup = run_program(base + " --drafts 4"),
               model = run_program(base + " --drafts 4 --draft-model models/tiny-k3-draft");
  EXPECT_EQ(lookup.out, plain.out);
  EXPECT_EQ(model.out, plain.out);
  EXPECT_THAT(model.err, HasSubstr("drafts,"));
  for (const std::string states : {"slots", "records"}) {
    const Result kept = run_program(base + " --drafts 4 --draft-states " + states);
    EXPECT_EQ(kept.out, plain.out);
    EXPECT_THAT(kept.err, HasSubstr("per sequence (drafts as " + states + ")"));
  }
  EXPECT_EQ(run_program(base + " --drafts 17").status, 2);
  const Result alone = run_program(base + " --draft-model models/tiny-k3-draft");
  EXPECT_EQ(alone.status, 2);
  EXPECT_THAT(alone.err, HasSubstr("--draft-model: given, but --drafts is 0"));
  const Result states = run_program(base + " --draft-states records");
  EXPECT_EQ(states.status, 2);
  EXPECT_THAT(states.err, HasSubstr("--draft-states: given, but --drafts is 0"));
}

TEST_F(Generate, ACacheThatDoesNotHoldOneContextIsRefusedByBothFlags) {
  std::ofstream(path("in")) << "{\"body\":{\"prompt\":\"x\"}}\n";
  const Result r = generate("--cache-tokens 2000 -c 4096");
  EXPECT_EQ(r.status, 2);
  EXPECT_THAT(r.err, HasSubstr("--cache-tokens: 2000, expected at least --max-model-len, 4096"));
}

TEST_F(Generate, ExplainStepSaysWhatRunsAndWhy) {
  const Result r = run_program("run models/tiny-k3 -p 'And God said' -n 2 --temp 0 --explain-step");
  EXPECT_THAT(r.err, AllOf(HasSubstr("tokens 0..2 of 3, prefill, the whole prompt"),
                           HasSubstr("row 0: tokens 0..3, context 0, slots 1, from zero, pages 1, logits 1"),
                           HasSubstr("tokens 3..3 of 4, decode")));
}

TEST_F(Generate, BenchComparesRequestsAtOnceWithOneAndWithTheRoof) {
  const std::string base = "bench models/tiny-k3 -p 8 -n 4 -r 2 -o ";
  const Result r = run_program(base + "csv --concurrency 1,3");
  EXPECT_EQ(r.status, 0);
  EXPECT_THAT(r.out, AllOf(HasSubstr(",c1 pp8+tg4,"), HasSubstr(",c3 pp8+tg4,"), HasSubstr(",percent_of_roof\n")));
  const Json rows = parse_json(run_program(base + "json --concurrency 1,3").out, {"bench"});
  ASSERT_EQ(rows.array().size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    const Json& row = rows.array()[i];
    EXPECT_EQ(row.find("concurrency")->integer(), i == 0 ? 1 : 3);
    EXPECT_THAT(row.find("build")->string(), HasSubstr("commit "));
    EXPECT_GT(row.find("median_ts")->number(), 0);
    EXPECT_GE(row.find("spread_percent")->number(), 0);
    EXPECT_GT(row.find("percent_of_roof")->number(), 0);
    const double of_one = row.find("against_one")->number();
    if (i == 0)
      EXPECT_EQ(of_one, 1);
    else
      EXPECT_GT(of_one, 0);
  }
  // Without a row of one there is nothing to compare with.
  EXPECT_THAT(run_program(base + "json --concurrency 3").out, Not(HasSubstr("against_one")));
  EXPECT_THAT(run_program(base + "csv").out, Not(HasSubstr("percent_of_roof")));
}

TEST_F(Generate, BenchServeMeasuresWhatUsersOfAServerSee) {
  const Result r = run_program(
      "bench serve models/tiny-k3 --concurrency 1,3 --num-prompts 6 -p 8 -n 4 -r 2 --good-whole 1e9 --length-spread "
      "0.5 -t 1 -q -o json");
  ASSERT_EQ(r.status, 0) << r.err;
  const Json rows = parse_json(r.out, {"bench serve"});
  ASSERT_EQ(rows.array().size(), 2u);
  for (const Json& row : rows.array()) {
    EXPECT_EQ(row.find("requests")->integer(), 12);
    EXPECT_EQ(row.find("failed")->integer(), 0);
    EXPECT_EQ(row.find("samples_ts")->array().size(), 2u);
    EXPECT_GT(row.find("median_ts")->number(), 0);
    EXPECT_EQ(row.find("goodput_per_s")->number(), row.find("requests_per_s")->number()) << "every request is good";
    EXPECT_EQ(row.find("cpu_us_per_token")->array().size(), 2u);
    for (const char* times : {"first_token_ms", "whole_ms", "first_byte_behind_first_token_ms"}) {
      const Json& t = *row.find(times);
      EXPECT_GT(t.find("p50")->number(), 0) << times;
      EXPECT_LE(t.find("p50")->number(), t.find("p99")->number()) << times;
      EXPECT_LE(t.find("p99")->number(), t.find("max")->number()) << times;
    }
    EXPECT_LE(row.find("first_token_ms")->find("p50")->number(), row.find("whole_ms")->find("max")->number());
  }
  const std::string few = "bench serve models/tiny-k3 --num-prompts 2 --concurrency 1 -p 8 -n 4 -r 1 -t 1 -q -o json ";
  const Result none = run_program(few + "--good-first 0.000001");
  EXPECT_THAT(none.out, HasSubstr("\"goodput_per_s\":0.0000")) << "no token comes that soon";
}

TEST_F(Generate, BenchServeOfAServerThatIsNotThereFailsAtOnceWithoutATable) {
  const std::string base = "bench serve --concurrency 1,2 --url http://127.0.0.1:1";
  for (const char* more : {"", "/", "/v1", "/v1/ --no-warmup", " --no-warmup -o json"}) {
    const Result r = run_program(base + more);
    EXPECT_EQ(r.status, 1) << more;
    EXPECT_EQ(r.out, "") << more;
    EXPECT_THAT(r.err, testing::MatchesRegex(
                           "kdelta: --url: http://127.0.0.1:1[/v1]*: no request was answered: Connection refused\n"))
        << more;
  }
  EXPECT_THAT(run_program(base + "/v2").err, HasSubstr("expected http://HOST[:PORT][/v1]"));
}

}  // namespace
}  // namespace kdelta::test
