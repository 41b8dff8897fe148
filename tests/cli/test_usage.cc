// What the program refuses, how it says so, and where flags come from.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>

#include "kdelta/api/options.h"
#include "kdelta/io/json.h"
#include "tests/cli/run_program.h"

namespace kdelta::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const std::string kTiny = "models/tiny-k3";
// A config without weights: whoever opens the checkpoint of it fails with exit code 1.
const std::string kBare = "tests/configs/kimi_k3";

struct Wrong {
  std::string command, flags, named;  // what the message must contain
};

void PrintTo(const Wrong& w, std::ostream* out) {
  *out << w.command << " " << w.flags;
}

class WrongFlag : public testing::TestWithParam<Wrong> {};

TEST_P(WrongFlag, IsRefusedByItsNameBeforeTheCheckpointIsOpened) {
  const Wrong& w = GetParam();
  const Result r = run_program(w.command + " " + kBare + " " + w.flags);
  EXPECT_EQ(r.status, 2) << r.err;
  EXPECT_THAT(r.err, HasSubstr(w.named));
  EXPECT_EQ(r.out, "");
}

std::vector<Wrong> wrong_flags() {
  std::vector<Wrong> all;
  // What every command that loads a model shares.
  for (const char* command :
       {"run --ids 1", "chat -p x", "inspect", "perplexity --ids 1,2", "bench", "logits --ids 1 --out x"}) {
    for (const auto& [flags, named] : std::initializer_list<std::pair<const char*, const char*>>{
             {"--dtype int3", "--dtype"},
             {"--state-dtype fp8", "--state-dtype"},
             {"-t -1", "--threads"},
             {"-t 100000", "--threads: 100000, expected 0 to 1024"},
             {"-t many", "--threads"},
             {"-c -1", "--max-model-len"},
             {"-c 1048577", "--max-model-len: 1048577, this model's context is 1048576"},
             {"-b 99999999999999999999", "--max-num-batched-tokens: 99999999999999999999, too large a number"},
             {"-t 99999999999999999999", "--threads: 99999999999999999999, too large a number"},
             {"-c 9223372036854775807", "--max-model-len"},
             {"-b 0", "--max-num-batched-tokens"},
             {"-b 9223372036854775807", "--max-num-batched-tokens"},
             {"--isa sse9", "--isa: 'sse9', accepted: portable"},
             {"--force linear", "--force: 'linear', expected OP:VARIANT"},
             {"--force nope:avx2", "--force: no op 'nope', known: activation"},
             {"--force kda:nope", "--force: op kda has no variant 'nope', known: chunk_int16"},
             {"--isa portable --force kda:avx2", "--force: kda:avx2 needs avx2, the most to use here is portable"},
             {"--load-format gguf", "--load-format"}})
      all.push_back({command, flags, named});
  }
  for (const char* command : {"run --ids 1", "chat -p x"}) {
    for (const auto& [flags, named] : std::initializer_list<std::pair<const char*, const char*>>{
             {"--temp -1", "--temperature: -1, expected >= 0"},
             {"--temp nan", "--temperature"},
             {"--temp warm", "--temperature"},
             {"--top-k -2", "--top-k: -2, expected >= 1, or 0 or -1 for off"},
             {"--top-p 2", "--top-p: 2, expected 0..1"},
             {"--min-p -0.1", "--min-p"},
             {"--repeat-penalty 0", "--repetition-penalty"},
             {"--presence-penalty inf", "--presence-penalty"},
             {"--draft-states rows", "--draft-states"},
             {"--frequency-penalty nan", "--frequency-penalty"},
             {"-n 0", "--max-tokens: 0, expected >= 1"},
             {"-n -2", "--max-tokens: -2, expected >= 1, or -1"},
             {"-n 99999999999999999999", "kdelta: --max-tokens: 99999999999999999999, too large a number"},
             {"--logit-bias 1=2 3=4", "3=4"},
             {"--min-tokens -1", "--min-tokens: -1, expected >= 0"},
             {"-n 4 --min-tokens 5", "--min-tokens: 5, expected at most --max-tokens, 4"},
             {"--seed -2", "--seed: '-2', expected 0 to 2^64-1, or -1"},
             {"--regex 'a(?=b)'", "--regex: column 2: look-ahead is not supported"},
             {"--json-schema '{\"contains\":{}}'", "--json-schema: #/contains: this keyword is not supported"},
             {"--json-schema nofile", "--json-schema: 'nofile' is no file"},
             {"--grammar nofile", "--grammar"},
             {"--regex a --json-object", "more than one given"},
             {"--logit-bias 5", "--logit-bias: '5', expected ID=BIAS"},
             {"--logit-bias 99999999999=1", "--logit-bias"},
             {"--logit-bias 5=nan", "--logit-bias"},
             {"--logit-bias 163840=1", "--logit-bias: token 163840"}})
      all.push_back({command, flags, named});
  }
  const Wrong own[] = {
      {"run", "--ids 1,x", "--ids: 'x' is no token id"},
      {"run", "--ids 1,-1", "--ids"},
      {"run", "--ids 1,,2", "--ids: a comma without a token id, after 1 id"},
      {"run", "--ids '1, ,2'", "--ids: a comma without a token id"},
      {"run", "--ids ,1", "--ids: a comma without a token id"},
      {"run", "--ids 1,163840", "--ids: token 163840 at position 1, expected 0 to 163839"},
      {"run", "-p ''", "--prompt: empty"},
      {"run", "--ids ''", "--ids: no token id"},
      {"run", "-f -", "standard input: empty"},
      {"chat", "-p ''", "--prompt: empty"},
      {"perplexity", "--ids ''", "--ids: no token id"},
      {"run", "-p x --stop a b", "b"},
      {"run", "-p x y", "y"},
      {"run", "-p x -p ''", "--prompt: empty"},
      {"run", "-p x --prompts README.md", "give one of --prompt, --file, --prompts, --ids"},
      {"run", "-p x -N -1", "--max-num-seqs: -1"},
      {"run", "-p x --ids 1", "give one of --prompt, --file, --prompts, --ids"},
      {"run", "-f /nonesuch", "--file"},
      {"run", "-p x --stop ''", "--stop"},
      {"run", "-p x --json --logprobs -1", "--logprobs: -1, expected >= 0"},
      {"run", "-p x --logprobs 2", "--logprobs: goes with --json"},
      {"chat", "--json", "--json: goes with --prompt"},
      {"chat", "-p x --effort some", "--effort"},
      {"chat", "-p x --tools README.md", "--tools"},
      {"chat", "-p x --tools tests/configs/kimi_k3/config.json", "--tools: object of "},
      {"chat", "-p x --stop y", "--stop"},
      {"inspect", "-N 0", "--max-num-seqs"},
      {"inspect", "-N 600", "--max-num-seqs: 600, expected 1 to 512 (--max-num-batched-tokens)"},
      {"inspect", "-b 64 -N 600", "--max-num-batched-tokens: 64, expected 600 (--max-num-seqs) to"},
      {"serve", "-N 100000", "--max-num-seqs: 100000, expected 1 to 512 (--max-num-batched-tokens)"},
      {"inspect", "-b 0", "--max-num-batched-tokens: 0, expected 1 to"},
      {"generate", "-i README.md -o x -b 4", "--max-num-batched-tokens: 4, expected 16 (--max-num-seqs) to"},
      {"run", "--ids 1 --draft-states slots", "--draft-states: given, but --drafts is 0"},
      {"perplexity", "--window 1", "--window"},
      {"perplexity", "--window 9223372036854775807", "--window"},
      {"perplexity", "--ids 7", "--ids: one token, expected at least two"},
      {"perplexity", "--ids 7,163840", "--ids: token 163840"},
      {"perplexity", "-c 2 --ids 7,8,9", "--window: 512, expected at most --max-model-len 2"},
      {"bench", "-p -1", "--n-prompt"},
      {"bench", "-n 9223372036854775807", "--n-gen"},
      {"bench", "-n 0 -p 0,0", "--n-prompt and --n-gen: 0, nothing to measure"},
      {"bench", "--concurrency 2 -p 8,16", "--n-prompt: 2 values, expected one length above 0 beside --concurrency"},
      {"bench", "--concurrency 2 -n 0", "--n-gen: 0, expected one length above 0 beside --concurrency"},
      {"bench", "--concurrency 2 -d 512", "--n-depth: goes without --concurrency"},
      {"bench", "-d 100", "--n-depth: 100, expected a multiple of --max-num-batched-tokens 512"},
      {"bench serve", "--url http://x", "bench serve: a model, to be served in this process, or --url; one of both"},
      {"bench serve", "--concurrency 0", "--concurrency"},
      {"bench", "-r 0", "--repetitions: 0, expected a whole number from 1 to 1000000"},
      {"bench", "-p 8 16", "16"},
      {"bench", "-o xml", "--output"},
      {"logits", "--ids 163840 --out x", "--ids: token 163840"},
      {"logits", "--ids 1 --out x --chunk -1", "--chunk: -1"},
      {"logits", "--ids 1 --out x --dump everything", "--dump: 'everything', accepted: layers, router, state"},
      {"logits", "--ids 1 --out /nowhere/x", "--out: '/nowhere/x': there is no folder /nowhere"},
      {"generate", "-i README.md -o /nonesuch/x", "--output: /nonesuch/x: there is no folder /nonesuch"},
      {"generate", "-i README.md -o /dev/null", "--output: /dev/null: no regular file"},
      {"generate", "-i README.md -o README.md", "--output: README.md: the same file as the input"},
      {"tokenize", "-p x -f README.md", "give one of --text, --file"},
      {"run", "-p x --nonesuch 3", "--nonesuch"}};
  all.insert(all.end(), std::begin(own), std::end(own));
  return all;
}

INSTANTIATE_TEST_SUITE_P(Flags, WrongFlag, testing::ValuesIn(wrong_flags()));

TEST(Usage, GoodFlagsReachTheCheckpointAndItsFaultIsExitCodeOne) {
  for (const char* arguments :
       {"run --ids 1,163839 --top-k -1 -n -1 --seed -1 --logit-bias 163839=-1", "inspect", "bench -d 512",
        "perplexity --ids 1,2 --window 1073741824", "logits --ids 1 --out x --chunk 0 --dump layers"}) {
    const std::string command = arguments;
    const size_t name = std::min(command.find(' '), command.size());
    const Result r = run_program(command.substr(0, name) + " " + kBare + command.substr(name));
    EXPECT_EQ(r.status, 1) << arguments;
    EXPECT_THAT(r.err, HasSubstr("no *.safetensors file")) << arguments;
  }
}

TEST(Usage, NoCommandAndNoModelAreWrongUsageAndHelpIsNot) {
  EXPECT_EQ(run_program("").status, 2);
  EXPECT_EQ(run_program("nonesuch").status, 2);
  EXPECT_EQ(run_program("run").status, 2);
  EXPECT_EQ(run_program("run /nowhere -p x").status, 2);
  EXPECT_EQ(run_program("--help").status, 0);
  EXPECT_THAT(run_program("run --help").out, AllOf(HasSubstr("inspect MODEL --ops"), HasSubstr("the last counts")));
  EXPECT_THAT(run_program("run --help").out, HasSubstr("amx"));
  EXPECT_THAT(run_program("--version").out, testing::StartsWith("kdelta 0."));
}

TEST(Usage, AFirstWordThatIsNoCommandIsNamedWithTheNearestOrTheModelThatIsThere) {
  for (const auto& [words, told] : std::initializer_list<std::pair<const char*, const char*>>{
           {"models/nonexist", "kdelta: 'models/nonexist': no such command or directory; commands: run, generate"},
           {"tiny-k3", "the model that comes with kdelta: models/tiny-k3"},
           {"chta models/tiny-k3", "'chta': no such command or directory; did you mean 'chat'?"},
           {"models/tiny-k3", "a command comes first, as in: run models/tiny-k3"},
           {"-p hello", "kdelta: '-p': a command and a model come first, as in: run models/tiny-k3"},
           {"--hlep", "'--hlep': no such flag; did you mean --help?"},
           {"--bogus", "'--bogus': a command and a model come first"}}) {
    const Result r = run_program(words);
    EXPECT_EQ(r.status, 2) << words;
    EXPECT_THAT(r.err, HasSubstr(told)) << words;
  }
}

// The flag, what was given, what is accepted; nothing that the parser would say in its own words.
TEST(Usage, WhatTheParserRefusesIsSaidLikeEverythingElse) {
  for (const auto& [words, told] : std::initializer_list<std::pair<const char*, const char*>>{
           {"run models/tiny-k3 --tmep 0", "--tmep: no flag of run; did you mean --temp?"},
           {"run models/tiny-k3 --max-tokns=3", "--max-tokns: no flag of run; did you mean --max-tokens?"},
           {"run models/tiny-k3 --nonesuch 3", "kdelta: --nonesuch: no flag of run\n"},
           {"bench serve models/tiny-k3 --request-rat 3",
            "--request-rat: no flag of serve; did you mean --request-rate?"},
           {"run models/tiny-k3 models/tiny-k3", "'models/tiny-k3': not expected here"},
           {"run models/tiny-k3 -p x --temp", "--temperature: no value, expected a number"},
           {"run -p x", "MODEL: missing, expected a directory: Checkpoint directory"},
           {"generate models/tiny-k3", "--input: missing, expected a file: JSON lines"},
           {"run /nowhere -p x", "MODEL: '/nowhere': no such directory"},
           {"run README.md -p x", "MODEL: 'README.md': a file, expected a directory"},
           {"run models/tiny-k3 -f /nowhere", "--file: '/nowhere': no such file"},
           {"run models/tiny-k3 -t many -p x", "--threads: 'many', expected a whole number"},
           {"run models/tiny-k3 -n 1.5 -p x", "--max-tokens: '1.5', expected a whole number"},
           {"run models/tiny-k3 --dtype int3 -p x", "--dtype: 'int3', accepted: bf16, bfloat16, fp32, float32"},
           {"run models/tiny-k3 --drafts 99 -p x", "--drafts: 99, expected a whole number from 0 to 16"},
           {"serve models/tiny-k3 --timeout x", "--timeout: x, expected a number from 0 to 1000000"}}) {
    const Result r = run_program(words);
    EXPECT_EQ(r.status, 2) << words;
    EXPECT_THAT(r.err, HasSubstr(told)) << words;
    EXPECT_THAT(r.err, HasSubstr(" --help' lists what it takes")) << words;
  }
}

TEST(Usage, EveryCommandTakesItsModelByTheSameNames) {
  for (const char* command : {"run", "generate -i README.md -o x", "serve", "chat", "inspect", "tokenize", "perplexity",
                              "bench", "bench serve", "logits --ids 1 --out x", "quantize"})
    for (const char* name : {" ", " -m ", " --model ", " --model-path "}) {
      const Result r = run_program(std::string(command) + name + "/nowhere");
      EXPECT_EQ(r.status, 2) << command << name;
      EXPECT_THAT(r.err, HasSubstr("'/nowhere': no such directory")) << command << name;
    }
}

TEST(Usage, AnAnswerThatMustNotEndWhereItsConstraintDoesNamesTheFlagOnALineOfItsOwn) {
  for (const char* command : {"run", "chat"}) {
    const Result r = run_program(std::string(command) + " " + kTiny + " -p And --choice abc --min-tokens 40 -q");
    EXPECT_EQ(r.status, 1) << command;
    EXPECT_EQ(r.out, "abc\n") << command;
    EXPECT_THAT(r.err, testing::MatchesRegex(
                           "kdelta: generation failed: no usable logit among the tokens that its constraint allows; "
                           "--min-tokens: 40 allows no end behind [0-9]+\n"))
        << command;
  }
}

TEST(Usage, AnArchitectureThatIsUnknownIsShown) {
  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) / ("kdelta_arch_" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "config.json") << R"({"architectures": ["LlamaForCausalLM"]})";
  EXPECT_THAT(run_program("run " + folder.string() + " --ids 1").err,
              HasSubstr("architectures: array of string \"LlamaForCausalLM\", expected \"KimiK3"));
  std::filesystem::remove_all(folder);
}

TEST(Usage, ASeedOfAnswersInWhichNothingIsDrawnIsSaidToHaveNoEffect) {
  const std::string base = "run " + kTiny + " --ids 5 -n 1 --seed 3 --temp ";
  EXPECT_THAT(run_program(base + "0").err, HasSubstr("note: --seed 3: of no effect, at temperature 0"));
  EXPECT_THAT(run_program(base + "1").err, testing::Not(HasSubstr("of no effect")));
  EXPECT_EQ(run_program(base + "0 -q").err, "");
}

TEST(Usage, AFaultInAFileOfPromptsIsNamedByItsLine) {
  const std::string command = "run " + kTiny + " --prompts - -c 8 -n 2 -q";
  const Result r =
      run_program(command, "", "printf 'a\\n\\nIn the beginning God created the heaven and the earth\\nb\\n' |");
  EXPECT_EQ(r.status, 1);
  EXPECT_THAT(r.err, HasSubstr("kdelta: --prompts: line 3: prompt: "));
  EXPECT_THAT(run_program(command, "", "printf 'a\\nb\\n\\377\\n' |").err, HasSubstr("--prompts: line 3: "));
}

TEST(Usage, TheParametersOfAModelAreTheElementsOfItsTensors) {
  for (const std::string model : {"models/tiny-k3", "models/tiny-k3-draft", "tests/golden/linear_a"}) {
    const Json j = parse_json(run_program("inspect " + model + " --json --tensors").out, {"inspect"});
    int64_t elements = 0;
    for (const Json& t : j.find("tensor_list")->array()) {
      int64_t n = 1;
      for (const Json& d : t.find("shape")->array()) n *= d.integer();
      const std::string name = t.find("name")->string();
      // Two codes a byte; a scale is a part of the codes' numbers, not a number of the model.
      elements += name.ends_with("_packed") ? 2 * n : name.ends_with("_scale") ? 0 : n;
    }
    EXPECT_EQ(j.find("parameters")->integer(), elements) << model;
  }
}

TEST(Usage, EveryRefusalSaysWhoRefuses) {
  for (const char* words : {"", "run", "run --nonesuch", "bench models/tiny-k3 -o xml", "tokenize /nowhere"})
    EXPECT_THAT(run_program(words).err, testing::StartsWith("kdelta: ")) << words;
}

TEST(Usage, APromptThatTheContextDoesNotHoldIsWrongUsage) {
  const Result r = run_program("run " + kTiny + " --ids 1,2,3,4 -c 4");
  EXPECT_EQ(r.status, 2);
  EXPECT_THAT(r.err, HasSubstr("the context holds 4 (--max-model-len)"));
}

// Kimi K3 with random weights fits no machine; whatever a command is asked for, what it says shrinks the plan is a flag
// of its own.
TEST(Usage, ARefusalForWantOfMemoryNamesOnlyFlagsOfTheCommand) {
  const std::string model = " " + kBare + " --load-format dummy ";
  for (const auto& [command, flags, named] : std::initializer_list<std::array<const char*, 3>>{
           {"run", "--ids 1", "--max-model-len 32768"},
           {"run", "--prompts README.md", "--max-num-seqs 16"},
           {"chat", "-p x", "--prefix-snapshots 2"},
           {"chat", "-p x --drafts 3", "--drafts 3"},
           {"generate", "-i README.md -o x", "--max-num-seqs 16"},
           {"perplexity", "--ids 1,2,3", "--window 3"},
           {"perplexity", "--ids 1,2,3 -c 900", "--max-model-len 900"},
           {"bench", "", "the longest of --n-prompt, --n-gen and --n-depth 514"},
           {"bench", "-c 900 --concurrency 8", "--max-model-len 900, --max-num-batched-tokens 512, --concurrency 8"},
           {"logits", "--ids 1,2 --out x", "the number of --ids, 2"}}) {
    const Result r = run_program(command + model + flags);
    EXPECT_EQ(r.status, 1) << command << r.err;
    EXPECT_THAT(r.err, AllOf(HasSubstr("kdelta: memory: "), HasSubstr(named))) << command;
    const std::string help = run_program(std::string(command) + " --help").out;
    for (size_t at = r.err.find("--"); at != std::string::npos; at = r.err.find("--", at + 2)) {
      const std::string flag = r.err.substr(at, r.err.find_first_not_of("-abcdefghijklmnopqrstuvwxyz", at) - at);
      EXPECT_THAT(help, testing::ContainsRegex(flag + "[ ,]")) << command;
    }
  }
}

TEST(Usage, AnInstructionSetThatTheMachineLacksIsRefusedWithThoseItHas) {
  const std::vector<std::string> here = machine_isa();
  EXPECT_EQ(here.front(), "portable");
  std::string list;
  for (const std::string& isa : here) list += (list.empty() ? "" : ", ") + isa;
  for (const std::string isa : {"avx2", "avx512", "avx512_bf16", "amx"}) {
    const bool has = std::find(here.begin(), here.end(), isa) != here.end();
    const Result r = run_program("run " + kTiny + " -q --ids 1 -n 1 --isa " + isa);
    EXPECT_EQ(r.status, has ? 0 : 2) << isa;
    EXPECT_EQ(r.err, has ? "" : "kdelta: --isa: '" + isa + "', this machine has: " + list + "\n");
  }
}

TEST(Usage, AForcedKernelThatRefusesTheModelIsWrongUsage) {
  const Result r = run_program("run " + kTiny + " -p x --dtype fp32 --force linear:avx512_bf16");
  EXPECT_EQ(r.status, 2);
  EXPECT_THAT(r.err, HasSubstr("--force: "));
}

TEST(Usage, OfAScalarFlagGivenTwiceTheLastCounts) {
  const Result r = run_program("run " + kTiny + " --ids 5 --seed 1 --seed 7 -n 9 --predict 2 --json --json -q");
  ASSERT_EQ(r.status, 0) << r.err;
  const Json j = parse_json(r.out, {"run"});
  EXPECT_EQ(j.find("seed")->integer(), 7);
  EXPECT_EQ(j.find("tokens")->array().size(), 2u);
}

TEST(Usage, ListsCollectEveryMention) {
  const Result r = run_program("bench " + kTiny + " -p 8 -p 16 -n 0 -r 1 --no-warmup -o csv");
  EXPECT_THAT(r.out, AllOf(HasSubstr(",pp8,"), HasSubstr(",pp16,")));
}

int64_t tokens_with(const std::string& variables, const std::string& flags = "") {
  const Result r = run_program("run " + kTiny + " --ids 5 --ignore-eos --json -q " + flags, "</dev/null", variables);
  return r.status == 0 ? std::ssize(parse_json(r.out, {"run"}).find("tokens")->array()) : -r.status;
}

TEST(Usage, EveryLongNameOfAFlagIsAnEnvironmentVariable) {
  EXPECT_EQ(tokens_with("KDELTA_ARG_MAX_TOKENS=2"), 2);
  EXPECT_EQ(tokens_with("KDELTA_ARG_PREDICT=3"), 3);
  EXPECT_EQ(tokens_with("KDELTA_ARG_PREDICT=3", "-n 4"), 4) << "a flag wins over the environment";
  EXPECT_EQ(tokens_with("KDELTA_ARG_PREDICT=3 KDELTA_ARG_MAX_TOKENS=3"), 3);
  const Result model = run_program("run --ids 5 -n 1 -q --json", "</dev/null", "KDELTA_ARG_MODEL_PATH=" + kTiny);
  EXPECT_EQ(model.status, 0) << model.err;
}

TEST(Usage, TwoNamesOfOneFlagWithDifferentValuesAreRefused) {
  const Result r =
      run_program("run " + kTiny + " --ids 5", "</dev/null", "KDELTA_ARG_PREDICT=3 KDELTA_ARG_MAX_TOKENS=4");
  EXPECT_EQ(r.status, 2);
  EXPECT_THAT(r.err, AllOf(HasSubstr("KDELTA_ARG_PREDICT"), HasSubstr("KDELTA_ARG_MAX_TOKENS")));
}

TEST(Usage, AWrongValueOfTheEnvironmentIsSaidToComeFromThere) {
  const Result r = run_program("run " + kTiny + " --ids 5", "</dev/null", "KDELTA_ARG_THREADS=many");
  EXPECT_EQ(r.status, 2);
  EXPECT_THAT(r.err, HasSubstr("KDELTA_ARG_THREADS is set in the environment"));
}

TEST(Usage, TheHelpOfTheGateSaysWhatAutoGoesBy) {
  std::string help = run_program("run --help").out;
  std::replace(help.begin(), help.end(), '\n', ' ');
  help.erase(std::unique(help.begin(), help.end(), [](char a, char b) { return a == ' ' && b == ' '; }), help.end());
  EXPECT_THAT(help, AllOf(HasSubstr("auto (factored, unless a stored measurement"),
                          HasSubstr("faster by more than its spread")));
}

}  // namespace
}  // namespace kdelta::test
