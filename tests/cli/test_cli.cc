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
#include <set>

#include "kdelta/api/options.h"
#include "kdelta/io/json.h"
#include "tests/cli/run_program.h"
#include "tests/e2e/support.h"

namespace kdelta::test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

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

TEST(Program, OneNewlineAtTheEndOfAFileOrOfStandardInputIsNoPartOfThePrompt) {
  const std::string bare = run_program("run models/tiny-k3 -n 12 --temp 0 -q -p 'In the beginning God'").out;
  for (const char* text : {"In the beginning God", "In the beginning God\\n", "In the beginning God\\r\\n"})
    EXPECT_EQ(run_program("run models/tiny-k3 -n 12 --temp 0 -q", "", "printf '" + std::string(text) + "' |").out, bare)
        << text;
  const auto ids = [](const char* text) {
    return run_program("tokenize models/tiny-k3 --ids", "", "printf '" + std::string(text) + "' |").out;
  };
  EXPECT_EQ(ids("God\\n"), ids("God"));
  EXPECT_NE(ids("God\\n\\n"), ids("God\\n")) << "one, not all";
  EXPECT_EQ(run_program("run models/tiny-k3", "", "echo |").status, 2);
}

TEST(Program, JsonHoldsTextTokensAndReason) {
  const Result r = run_program(std::string("run ") + kTiny + " -p 'And' -n 3 --json --seed 5 --logprobs 1");
  EXPECT_EQ(r.status, 0);
  EXPECT_THAT(r.out, AllOf(HasSubstr("\"finish_reason\":\"length\""), HasSubstr("\"seed\":5"),
                           HasSubstr("\"prompt_tokens\":1"), HasSubstr("\"logprobs\":[{")));
}

// A weight that is NaN makes a number that is none: no success, and no JSON that nobody can read.
TEST(Program, APerplexityThatIsNoNumberIsAFailure) {
  std::string folder = testing::TempDir() + "kdelta_cli_nan_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string source = "tests/golden/linear_a";
  const Checkpoint c = Checkpoint::open(source);
  std::vector<std::vector<uint8_t>> bytes;
  std::vector<TensorToWrite> tensors;
  for (const TensorInfo& t : c.tensors()) {
    bytes.emplace_back(c.data(t), c.data(t) + t.bytes);
    if (t.name == "model.embed_tokens.weight")
      bytes.back()[3 * bytes.back().size() / static_cast<size_t>(t.shape[0]) + 1] = 0x7f;
    if (t.name == "model.embed_tokens.weight")
      bytes.back()[3 * bytes.back().size() / static_cast<size_t>(t.shape[0])] = 0xff;
    tensors.push_back({t.name, t.dtype, t.shape, bytes.back().data()});
  }
  write_safetensors(folder + "/model.safetensors", tensors);
  fs::copy_file(source + "/config.json", folder + "/config.json");
  const std::string head = "perplexity " + folder + " -q --json --window 4 --ids ";
  EXPECT_EQ(run_program(head + "1,2,4,5,6,7,8").status, 0);
  EXPECT_EQ(run_program(head + "1,2,3").status, 0) << "nothing is asked behind the last token";
  for (const char* ids : {"1,3,4,5,6,7,8", "1,2,4,5,6,3,8"}) {
    const Result r = run_program(head + ids);
    EXPECT_EQ(r.status, 1) << ids;
    EXPECT_EQ(r.out, "") << ids;
    EXPECT_THAT(r.err, HasSubstr("perplexity: ")) << ids;
  }
  fs::remove_all(folder);
}

TEST(Program, EveryInstructionSetGivesTheSameGreedyTextInFp32) {
  const std::string base = std::string("run ") + kTiny + " -q -p 'And God said' -n 24 --temp 0 --dtype fp32";
  const std::string want = run_program(base + " --isa portable").out;
  EXPECT_FALSE(want.empty());
  for (const std::string& isa : machine_isa()) EXPECT_EQ(run_program(base + " --isa " + isa).out, want) << isa;
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
  const Result quit = run_program(std::string("chat ") + kTiny + " -q", "<<'EOF'\n/quit\nHello\nEOF\n");
  EXPECT_EQ(quit.status, 0);
  EXPECT_EQ(quit.out + quit.err, "") << "nothing behind /quit is read";
}

TEST(Program, APipedChatWhoseAnswersFailSaysHowToGoOnAndFails) {
  const Result r = run_program(std::string("chat ") + kTiny + " -q -c 4", "<<'EOF'\nHello there\nEOF\n");
  EXPECT_EQ(r.status, 1);
  EXPECT_THAT(r.err, HasSubstr("the context holds 4 (--max-model-len); /reset forgets the conversation"));
}

TEST(Program, QuietLeavesStderrToErrors) {
  for (const char* words : {"perplexity models/tiny-k3 -q --ids 5,6,7", "bench models/tiny-k3 -q -p 8 -n 2 -r 1"}) {
    const Result r = run_program(words);
    EXPECT_EQ(r.status, 0) << words;
    EXPECT_EQ(r.err, "") << words;
    EXPECT_NE(r.out, "") << words;
  }
}

TEST(Program, InspectReadsHeadersAloneAndNamesEveryKernel) {
  const Result r = run_program(std::string("inspect ") + kTiny + " --ops --tensors");
  EXPECT_EQ(r.status, 0);
  EXPECT_THAT(r.out, AllOf(HasSubstr("Kimi K3"), HasSubstr("memory plan"), HasSubstr("grouped_linear"),
                           HasSubstr("w1.weight_packed")));
  const Result json = run_program(std::string("inspect ") + kTiny + " --json --ops --tensors");
  const Json j = parse_json(json.out, {"inspect"});
  EXPECT_EQ(j.find("kind")->string(), "Kimi K3");
  ASSERT_EQ(j.find("steps")->array().size(), 2u);
  for (const Json& step : j.find("steps")->array()) {
    std::set<std::string> ops;
    for (const Json& op : step.find("ops")->array()) {
      ops.insert(op.find("op")->string());
      EXPECT_GT(op.find("calls")->integer(), 0);
      // What a step runs, --force can name.
      const Json* variants = j.find("variants")->find(op.find("op")->string());
      ASSERT_NE(variants, nullptr) << op.find("op")->string();
      EXPECT_TRUE(std::any_of(variants->array().begin(), variants->array().end(), [&](const Json& v) {
        return v.find("name")->string() == op.find("variant")->string();
      })) << op.find("op")->string();
    }
    EXPECT_GE(ops.size(), 14u);
  }
}

// A NaN in a matrix is met by the first answer only: nothing of it is in a header.
TEST(Program, InspectCheckListsEveryTensorWithValuesThatAreNoNumbers) {
  const fs::path folder = fs::path(testing::TempDir()) / ("kdelta_check_" + std::to_string(getpid()));
  fs::remove_all(folder);
  fs::copy("models/tiny-k3", folder);
  const std::string command = "inspect " + folder.string() + " --check";
  EXPECT_THAT(run_program(command).out, HasSubstr("\nvalues: all are numbers\n"));
  EXPECT_EQ(run_program(command).status, 0);
  std::string file, name;
  int64_t begin = 0;
  {
    const Checkpoint checkpoint = Checkpoint::open(folder);
    const TensorInfo* t = checkpoint.find("language_model.model.layers.1.self_attn.o_proj.weight");
    ASSERT_NE(t, nullptr);
    ASSERT_EQ(t->dtype, DType::bf16);
    file = checkpoint.file_path(t->file), name = t->name, begin = t->begin;
  }
  std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
  for (const int64_t element : {17, 40}) {
    bytes.seekp(begin + 2 * element);
    bytes.write("\x80\x7f", 2);  // infinity
  }
  bytes.close();
  const Result text = run_program(command), json = run_program(command + " --json");
  EXPECT_EQ(text.status, 1);
  EXPECT_THAT(text.out, HasSubstr("values: not all are numbers\n  " + name + " (BF16, " + file + "): 2 of "));
  EXPECT_THAT(text.out, HasSubstr("the first is number 17\n"));
  EXPECT_EQ(json.status, 1);
  const Json j = parse_json(json.out, {.name = "output"});
  ASSERT_EQ(j.find("damaged")->array().size(), 1u);
  EXPECT_EQ(j.find("damaged")->array()[0].find("damaged")->integer(), 2);
  EXPECT_EQ(run_program("inspect " + folder.string()).status, 0) << "from headers alone";
  EXPECT_EQ(run_program(command + " --load-format dummy").status, 2);
  fs::remove_all(folder);
}

TEST(Program, InspectPlansOneOfSeveralRanks) {
  const auto plan = [](const std::string& flags) {
    const Result r = run_program("inspect tests/configs/kimi_k3 --load-format dummy --json --ops " + flags);
    EXPECT_EQ(r.status, 0) << r.err;
    return parse_json(r.out, {"inspect"});
  };
  const auto bytes = [](const Json& j, const char* field) { return j.find("memory")->find(field)->number(); };
  const Json whole = plan(""), experts = plan("--ranks 16"), width = plan("--ranks 16 --expert-split width");
  EXPECT_EQ(bytes(experts, "ranks"), 16);
  EXPECT_EQ(bytes(experts, "slot_bytes") * 16, bytes(whole, "slot_bytes"));
  EXPECT_EQ(bytes(experts, "token_bytes"), bytes(whole, "token_bytes")) << "latents are every rank's";
  // A sixteenth, but for what every rank holds whole: 1.7 % of all weights.
  for (const Json* j : {&experts, &width}) {
    EXPECT_GT(bytes(*j, "weights_converted") * 16, bytes(whole, "weights_converted"));
    EXPECT_LT(bytes(*j, "weights_converted") * 16, bytes(whole, "weights_converted") * 1.3);
  }
  std::set<std::string> ops;
  for (const Json& op : experts.find("steps")->array()[0].find("ops")->array()) ops.insert(op.find("op")->string());
  EXPECT_TRUE(ops.contains("all_reduce") && ops.contains("all_gather"));

  const Result text = run_program(std::string("inspect ") + kTiny + " --ranks 2");
  EXPECT_THAT(text.out, HasSubstr("memory plan of each of 2 ranks ("));
  const Result odd = run_program("inspect tests/configs/kimi_k3 --load-format dummy --ranks 7");
  EXPECT_EQ(odd.status, 2);
  EXPECT_EQ(odd.err.substr(0, odd.err.find('\n')),
            "kdelta: --ranks: 7: linear_attn_config.num_heads: 96 cannot be dealt to 7 ranks in equal parts");
}

TEST(Program, InspectSaysWithWhatContextItCountsTheOpsOfAStep) {
  const std::string base = std::string("inspect ") + kTiny + " --ops -c ";
  EXPECT_THAT(run_program(base + "1024").out, AllOf(HasSubstr("512 tokens of a prompt, in a context of 1024 (-c)\n"),
                                                    HasSubstr("one token, in a context of 1024 (-c)\n")));
  EXPECT_THAT(run_program(base + "256").out, HasSubstr("256 tokens of a prompt, in a context of 256 (-c)\n"));
  const Json j = parse_json(run_program(base + "256 --json").out, {"inspect"});
  for (const Json& step : j.find("steps")->array()) EXPECT_EQ(step.find("context")->integer(), 256);
}

TEST(Program, InspectOfABareConfigAllocatesNoWeights) {
  // 2.8 T parameters within 1 GB of address space.
  const Result r =
      run_program("inspect tests/configs/kimi_k3 --load-format dummy --json --ops", "</dev/null", "ulimit -v 1000000;");
  ASSERT_EQ(r.status, 0) << r.err;
  const Json j = parse_json(r.out, {"inspect"});
  EXPECT_GT(j.find("parameters")->number(), 2.7e12);
  EXPECT_LT(j.find("parameters")->number(), 2.9e12);
  EXPECT_EQ(j.find("steps")->array().size(), 2u);
}

TEST(Program, RandomWeightsThatMemoryDoesNotHoldAreRefusedBeforeTheyAreMade) {
  // The limit ends what this test would otherwise do to the machine if the idea were broken.
  const Result r =
      run_program("run tests/configs/kimi_k3 --load-format dummy --ids 1", "</dev/null", "ulimit -v 4000000;");
  EXPECT_EQ(r.status, 1);
  EXPECT_THAT(r.err, AllOf(testing::StartsWith("kdelta: memory: "), HasSubstr("of weights to be made and "),
                           HasSubstr("available; what shrinks the plan: --max-model-len 32768, ")));
}

TEST(Program, DiagnosticsThatNobodyCanReadLoseNoResult) {
  const std::string run = std::string("run ") + kTiny + " --ids 5,6 -n 4 --temp 0";
  const std::string want = run_program(run).out;
  ASSERT_FALSE(want.empty());
  const fs::path out = fs::temp_directory_path() / ("kdelta_mute_" + std::to_string(getpid()) + ".safetensors");
  for (const char* streams : {"</dev/null 2>&-", "</dev/null 2>/dev/full"}) {
    const Result r = run_program(run, streams);
    EXPECT_EQ(r.status, 0) << streams;
    EXPECT_EQ(r.out, want) << streams;
    EXPECT_EQ(run_program(std::string("logits ") + kTiny + " --ids 5,6 --out " + out.string(), streams).status, 0);
    EXPECT_NO_THROW(TensorFile(out.string()).floats("logits")) << streams;
    fs::remove(out);
  }
  for (const char* streams : {"</dev/null >&-", "</dev/null >/dev/full"}) {
    EXPECT_EQ(run_program(run, streams).status, 1) << streams;
    EXPECT_EQ(run_program("--help", streams).status, 1) << streams;
  }
}

TEST(Program, LogitsNeverReplaceAFileOfTheModelOrOneThatIsWriteProtected) {
  const fs::path folder = fs::temp_directory_path() / ("kdelta_own_" + std::to_string(getpid()));
  fs::remove_all(folder);
  fs::create_directories(folder / "other");
  for (const auto& entry : fs::directory_iterator("tests/golden/k3_a"))
    if (entry.path().filename() != "golden.safetensors") fs::copy(entry.path(), folder);
  fs::create_hard_link(folder / "config.json", folder / "other/name");
  fs::create_symlink("nowhere", folder / "other/dangling");
  std::ofstream(folder / "other/kept") << "kept";
  fs::permissions(folder / "other/kept", fs::perms{0444});
  const std::string base = "logits " + folder.string() + " --ids 1,2 --out " + folder.string();
  for (const auto& [name, told] : std::initializer_list<std::pair<const char*, const char*>>{
           {"/config.json", "a file of the model"},
           {"/other/name", "/config.json, a file of the model"},
           {"/other/kept", "kept: is write-protected"},
           {"/other/dangling", "dangling' is a symbolic link to 'nowhere'"}}) {
    const Result r = run_program(base + name);
    EXPECT_EQ(r.status, 2) << r.err;
    EXPECT_THAT(r.err, AllOf(HasSubstr("--out: "), HasSubstr(told)));
  }
  fs::remove_all(folder);
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
    EXPECT_EQ(r.status, 2) << target;
    EXPECT_THAT(r.err, HasSubstr("--out: ")) << target;
  }
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

TEST(Program, BenchPrintsRowsInEveryFormat) {
  const std::string base = std::string("bench ") + kTiny + " -p 16 -n 4 -r 2 --no-warmup -o ";
  EXPECT_THAT(run_program(base + "md").out, AllOf(HasSubstr("| pp16 |"), HasSubstr("| tg4 |")));
  EXPECT_THAT(run_program(base + "json").out,
              AllOf(testing::StartsWith("[{"), HasSubstr("\"samples_ts\":["), testing::EndsWith("]\n")));
  EXPECT_THAT(run_program(base + "csv").out, HasSubstr(",pp16,16,0,2,"));
}

TEST(Program, InterruptStopsTheAnswerWithExitCode130) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDOUT_FILENO);
    (void)!freopen("/dev/null", "w", stderr);
    execl(KDELTA_PROGRAM, KDELTA_PROGRAM, "run", kTiny, "-p", "And", "-n", "30000", "--ignore-eos", nullptr);
    _exit(99);
  }
  close(ends[1]);
  char text;  // its first byte: the answer has begun
  EXPECT_EQ(read(ends[0], &text, 1), 1);
  kill(child, SIGINT);
  for (char rest[4096]; read(ends[0], rest, sizeof(rest)) > 0;) {
  }
  close(ends[0]);
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
}

}  // namespace
}  // namespace kdelta::test
