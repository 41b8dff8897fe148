// The commands of the kdelta program. main.cc parses; each command is a function of its parsed options. Results go to
// stdout, all else to stderr. Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted, 143
// ended by SIGTERM.
#pragma once

#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include "kdelta/api/engine.h"
#include "kdelta/api/quantize.h"

namespace kdelta::cli {

inline constexpr int kExitFailed = 1, kExitUsage = 2, kExitSignal = 128, kExitInterrupted = kExitSignal + 2;

// Sampling flags that were given; the others come from the checkpoint's generation_config.json.
struct SamplingFlags {
  std::optional<float> temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
  std::optional<int32_t> top_k;
  std::string seed;                   // a number, -1 or "": a random one
  std::optional<int64_t> max_tokens;  // -1: until the context is full
  int64_t min_tokens = 0;
  std::optional<int32_t> logprobs;
  bool ignore_eos = false, show_specials = false;
  std::vector<std::string> stop, logit_bias;
  std::string grammar, json_schema, regex;  // grammar: a file; json_schema: a file or the text itself
  std::vector<std::string> choices;
  bool json_object = false;
};

struct RunOptions {
  LoadOptions load;  // max_sequences 0: as many as there are prompts, at most 16
  SamplingFlags sampling;
  std::vector<std::string> prompts;  // several: answered at once, printed in order
  std::optional<std::string> ids;
  std::string file, prompts_file;  // prompts_file: a prompt a line
  bool specials = false;           // names of special tokens in the prompt count as such
  bool json = false, echo = false, quiet = false, explain_step = false;
};
int run(const RunOptions& options);

struct GenerateFlags {
  LoadOptions load;
  SamplingFlags sampling;  // where a request says nothing
  std::string input, output;
  bool quiet = false;
};
int generate(const GenerateFlags& options);

struct ChatFlags {
  LoadOptions load;
  SamplingFlags sampling;
  std::optional<std::string> prompt;  // one answer, no conversation
  std::string system, effort, tools;  // tools: a JSON file
  bool no_think = false, no_history = false, json = false, quiet = false;
};
int chat(const ChatFlags& options);

struct InspectOptions {
  LoadOptions load;
  bool tensors = false, ops = false, json = false;
  bool check = false;  // reads every value
};
int inspect(const InspectOptions& options);

struct TokenizeOptions {
  std::string model;
  std::optional<std::string> text;
  std::string file;
  bool specials = false, ids_only = false, json = false, decode = false;
};
int tokenize(const TokenizeOptions& options);

struct PerplexityOptions {
  LoadOptions load;
  std::optional<std::string> ids;
  std::string file;
  int64_t window = 512;
  bool json = false, quiet = false;
};
int perplexity(const PerplexityOptions& options);

struct BenchOptions {
  LoadOptions load;
  std::vector<int64_t> prompt = {512}, generate = {128}, depth = {0};
  std::vector<int64_t> concurrency;  // requests at once; empty: one after the other
  int repetitions = 5;
  bool warmup = true, quiet = false;
  std::string output = "md";  // md, csv, json, jsonl
};
int bench(const BenchOptions& options);

struct BenchServeOptions {
  LoadOptions load;                  // model "": the server is at `url`
  std::string url, key, model_name;  // model_name "": requests name none
  std::vector<int64_t> concurrency = {1, 16};
  int64_t prompt = 128, generate = 64, requests = 0;  // requests 0: four times the concurrency
  double length_spread = 0, rate = 0;
  double most_first = 0, most_between = 0, most_whole = 0;  // ms of a good request; 0: any
  int repetitions = 3;
  bool warmup = true, quiet = false;
  std::string output = "md";  // md, json, jsonl
};
int bench_serve(const BenchServeOptions& options);

struct LogitsFlags {
  LoadOptions load;
  LogitsOptions logits;
  std::string ids, dump;
};
int logits(const LogitsFlags& options);

struct QuantizeFlags {
  QuantizeOptions quantize;
  bool json = false;
};
int quantize(const QuantizeFlags& options);

struct ServeFlags {
  LoadOptions load;
  std::string host = "127.0.0.1", key_file, metrics_prefix = "kdelta_";
  int port = 8000;
  std::vector<std::string> names, keys, origins;
  int64_t max_waiting = 256, max_body_mb = 8, max_connections = 16384;
  double timeout = 0, step_timeout = 300, shutdown_timeout = 30, ping_interval = 15, stall_timeout = 30;  // seconds
  double retry_window = 60;
  bool no_log = false, quiet = false;
};
int serve(const ServeFlags& options);

// Ctrl-C: set by the signal handler that main() installs.
extern std::atomic<bool> interrupted;
extern "C" void interrupt_handler(int);
void catch_interrupts();

}  // namespace kdelta::cli
