// kdelta: parses the command line and hands over to a command.
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>

#include "frontends/cli/commands.h"
#include "frontends/cli/config_file.h"
#include "frontends/cli/documents.h"
#include "frontends/cli/environment.h"
#include "frontends/cli/flags.h"
#include "frontends/cli/option_table.h"
#include "frontends/cli/parse_errors.h"
#include "frontends/cli/terminal.h"
#include "frontends/cli/usage.h"

namespace kdelta::cli {

std::atomic<bool> interrupted{false};

// First Ctrl-C asks the command to stop, the second ends the process at once.
extern "C" void interrupt_handler(int) {
  if (interrupted.exchange(true)) std::_Exit(kExitInterrupted);
}

void catch_interrupts() {
  struct sigaction action {};
  action.sa_handler = interrupt_handler;
  sigaction(SIGINT, &action, nullptr);  // without SA_RESTART: a read from a terminal or a pipe ends
}

namespace {

// Of a flag given twice the last counts, as in llama.cpp and vLLM, so that a script's flags can be overridden; lists
// collect all.
void last_one_wins(CLI::App& command) {
  for (CLI::Option* option : command.get_options())
    if (option->get_items_expected_max() == 1) option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

// A whole number beyond 64 bits would be cut to the largest one, which some flags take for "no limit".
std::string fits_64_bits(const std::string& text) {
  int64_t value = 0;
  const bool fits = std::from_chars(text.data(), text.data() + text.size(), value).ec != std::errc::result_out_of_range;
  return fits ? "" : text + ", too large a number";
}

void refuse_large_numbers(CLI::App& command) {
  for (CLI::Option* option : command.get_options())
    if (option->get_type_name().starts_with("INT")) option->check(fits_64_bits);
}

// CLI11 reads one variable per option: the one that is set.
void name_environment(CLI::App& command) {
  for (CLI::Option* option : command.get_options())
    if (!option->get_lnames().empty() && option->get_lnames().front() != "help")
      option->envname(environment_name(option->get_lnames()));
}

// Where a wrong value may come from when nobody typed it.
void note_environment(const CLI::App& command) {
  for (const CLI::Option* option : command.get_options())
    if (!option->get_envname().empty() && std::getenv(option->get_envname().c_str()) != nullptr)
      say("{} is set in the environment\n", option->get_envname());
}

// The command that was being parsed, `bench serve` included.
const CLI::App& innermost(const CLI::App& app) {
  const auto parsed = app.get_subcommands();
  return parsed.empty() ? app : innermost(*parsed.front());
}

template <class T>
void add_optional(CLI::App& c, const char* names, std::optional<T>& target, const char* help) {
  c.add_option_function<T>(
      names, [&target](const T& value) { target = value; }, help);
}

void add_sampling(CLI::App& c, SamplingFlags& f) {
  add_optional(c, "-n,--max-tokens,--predict", f.max_tokens,
               "Most tokens to generate, at least 1 (default 256); -1: until the context is full");
  add_optional(c, "--temperature,--temp", f.temperature,
               "How freely tokens are drawn; 0: always the most probable one (default: the checkpoint's)");
  add_optional(c, "--top-k", f.top_k,
               "Draw from the N most probable tokens alone; 0 or -1: off (default: the checkpoint's)");
  add_optional(c, "--top-p", f.top_p,
               "Draw from the fewest tokens whose probabilities sum up to this; 1: off (default: the checkpoint's)");
  add_optional(c, "--min-p", f.min_p, "Draw from tokens that have this part of the best one's probability; 0: off");
  add_optional(c, "--repetition-penalty,--repeat-penalty", f.repetition_penalty,
               "Tokens of prompt and answer become less likely by this factor; 1: off");
  add_optional(c, "--presence-penalty", f.presence_penalty,
               "Taken from the logit of each token that the answer has; 0: off");
  add_optional(c, "--frequency-penalty", f.frequency_penalty, "The same, times how often it has it; 0: off");
  c.add_option("-s,--seed", f.seed,
               "Same seed, same answer (default or -1: random, printed); of no effect at temperature 0");
  c.add_option("--min-tokens", f.min_tokens, "No end before that many tokens");
  c.add_option("--logit-bias", f.logit_bias, "ID=BIAS: added to the logit of a token, may repeat")
      ->take_all()
      ->allow_extra_args(false);
  c.add_flag("--ignore-eos", f.ignore_eos, "Go on behind end markers");
  c.add_option("--grammar", f.grammar, "File in GBNF (llama.cpp's grammars): the answer is a text of it")
      ->check(CLI::ExistingFile);
  c.add_option("--json-schema", f.json_schema, "JSON Schema, as text or a file: the answer is valid under it");
  c.add_flag("--json-object", f.json_object, "The answer is a JSON object");
  c.add_option("--regex", f.regex, "The answer matches this pattern as a whole");
  c.add_option("--choice", f.choices, "The answer is this text; may repeat: one of these")
      ->take_all()
      ->allow_extra_args(false);
}

// What makes sense for text alone: a chat's answer has a structure that strings and shown tokens would break.
void add_text_sampling(CLI::App& c, SamplingFlags& f) {
  add_optional(c, "--logprobs", f.logprobs, "With --json: log-probabilities of the chosen and the N best tokens");
  c.add_option("--stop,--reverse-prompt", f.stop, "End before this string, may repeat")
      ->take_all()
      ->allow_extra_args(false);
  c.add_flag("--special", f.show_specials, "Show special tokens in the text");
}

// A file that can be read, or - for standard input.
std::string readable(const std::string& path) {
  return path == "-" ? "" : CLI::ExistingFile(path);
}

class Program {
 public:
  Program() {
    app_.name("kdelta");
    app_.require_subcommand(1);
    app_.set_version_flag("--version", "kdelta " + version());
    add_run();
    add_generate();
    add_serve();
    add_chat();
    add_inspect();
    add_tokenize();
    add_perplexity();
    add_bench();
    add_logits();
    add_quantize();
    add_documents();
    app_.footer(
        "Of a flag given twice the last counts; --stop, --logit-bias, --choice, run's --prompt and bench's lists "
        "collect all.\nEvery long flag is also an environment variable: --max-tokens is KDELTA_ARG_MAX_TOKENS.\n"
        "Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted, 143 ended by SIGTERM.");
    std::vector<CLI::App*> commands = app_.get_subcommands({});
    commands.push_back(bench_serve_command_);
    for (CLI::App* c : commands) {
      c->footer(app_.get_footer());
      if (c->get_option_no_throw("--model") != nullptr)
        c->add_option("--config", config_,
                      "JSON file of flags by their long names; the environment and what is typed win")
            ->check(CLI::ExistingFile);
      last_one_wins(*c);
      refuse_large_numbers(*c);
      name_environment(*c);
    }
  }

  int main(int argc, char** argv) {
    try {
      std::vector<std::string> words(argv + 1, argv + argc);
      check_first_word(words);
      words = with_config(std::move(words), option_table(app_));
      std::ranges::reverse(words);  // the parser takes them from the end
      app_.parse(std::move(words));
    } catch (const UsageError& e) {
      say("kdelta: {}\n", e.what());
      return kExitUsage;
    } catch (const CLI::ParseError& e) {
      if (e.get_exit_code() == 0) {  // help and version
        app_.exit(e, std::cout, std::cerr);
        return written();
      }
      say("kdelta: {}", refusal(innermost(app_), e));
      note_environment(innermost(app_));
      return kExitUsage;
    }
    try {
      for (const CLI::Option* option : app_.get_subcommands().front()->get_options())
        if (!option->get_lnames().empty()) check_environment(option->get_lnames());
      const int status = command_();
      return written() == 0 ? status : kExitFailed;
    } catch (const UsageError& e) {
      say("kdelta: {}\n", e.what());
      return kExitUsage;
    } catch (const std::bad_alloc&) {
      say("kdelta: out of memory\n");
      return kExitFailed;
    } catch (const std::exception& e) {
      const std::string message = interrupted ? "interrupted" : in_words_of_flags(e.what());
      say("kdelta: {}\n", message);
      if (interrupted) return kExitInterrupted;
      return refuses_value(e) ? kExitUsage : kExitFailed;
    }
  }

 private:
  // A full disk or a closed pipe must not look like success.
  static int written() {
    std::cout.flush();
    if (std::cout && std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return 0;
    say("kdelta: cannot write to standard output\n");
    return kExitFailed;
  }

  // Before parsing, which would say only that a command is missing.
  void check_first_word(const std::vector<std::string>& words) const {
    if (words.empty()) return;
    std::vector<std::string> names;
    for (const CLI::App* c : app_.get_subcommands([](const CLI::App*) { return true; })) names.push_back(c->get_name());
    for (const char* known : {"-h", "--help", "--version"})
      if (words.front() == known) return;
    if (std::find(names.begin(), names.end(), words.front()) == names.end()) throw UsageError(no_command(words, names));
  }

  CLI::App& command(const char* name, const char* help, std::function<int()> body) {
    CLI::App* c = app_.add_subcommand(name, help);
    c->callback([this, body = std::move(body)] { command_ = body; });
    return *c;
  }

  void add_run() {
    CLI::App& c = command("run", "Continue a prompt; the text goes to stdout", [this] { return run(run_); });
    add_load(c, run_.load);
    add_drafts(c, run_.load);
    c.add_flag("--explain-step", run_.explain_step, "Say on stderr what each step runs and why");
    add_sampling(c, run_.sampling);
    add_text_sampling(c, run_.sampling);
    c.add_option("-p,--prompt", run_.prompts, "The prompt; may repeat: all are answered at once, printed in order")
        ->take_all()
        ->allow_extra_args(false);
    c.add_option("-f,--file", run_.file,
                 "File with the prompt; -: standard input. One newline at its end is no part of the prompt, as of "
                 "standard input")
        ->check(readable, "FILE");
    c.add_option("--prompts", run_.prompts_file, "File with a prompt a line; -: standard input")
        ->check(readable, "FILE");
    run_.load.max_sequences = 0;
    c.add_option("-N,--max-num-seqs", run_.load.max_sequences,
                 "Of several prompts, how many run at once; 0: all, at most 16")
        ->capture_default_str();
    add_optional(c, "--ids", run_.ids, "Token ids in place of text: a list or a file");
    c.add_flag("--parse-special", run_.specials, "Names of special tokens in the prompt become these tokens");
    c.add_flag("--echo", run_.echo, "Print the prompt as well");
    c.add_flag("--json", run_.json, "One JSON object in place of text");
    c.add_flag("-q,--quiet", run_.quiet, "Nothing on stderr but errors");
  }

  void add_generate() {
    CLI::App& c = command("generate", "Answer a file of requests (OpenAI batch format), many at once",
                          [this] { return generate(generate_); });
    add_load(c, generate_.load);
    add_serving(c, generate_.load);
    add_sampling(c, generate_.sampling);
    c.add_option("-i,--input", generate_.input, "JSON lines, one request each; -: standard input")
        ->required()
        ->check(readable, "FILE");
    c.add_option("-o,--output", generate_.output,
                 "File of JSON lines, one answer each; answers that it holds are kept, errors tried again")
        ->required();
    c.add_flag("-q,--quiet", generate_.quiet, "Nothing on stderr but errors");
  }

  void add_serve() {
    CLI::App& c =
        command("serve", "Serve the model over HTTP, as the OpenAI API does", [this] { return serve(serve_); });
    ServeFlags& o = serve_;
    const CLI::Range seconds(0.0, 1e6);
    const auto list = [&](const char* names, std::vector<std::string>& target, const char* help) {
      c.add_option(names, target, help)->take_all()->allow_extra_args(false)->delimiter(',');
    };
    add_load(c, o.load);
    add_serving(c, o.load);
    c.add_option("--host", o.host, "Address to listen at; 0.0.0.0: all of this machine's")->capture_default_str();
    c.add_option("--port", o.port, "Port; 0: one that is free")->capture_default_str()->check(CLI::Range(0, 65535));
    list("--served-model-name,--alias", o.names, "Names of the model, may repeat (default: its directory's)");
    list("--api-key", o.keys, "Key that a request must bring, may repeat; without any the server is open");
    c.add_option("--api-key-file", o.key_file, "File of such keys, one a line")->check(CLI::ExistingFile);
    list("--allowed-origins,--cors-origins", o.origins,
         "Web pages' origins that browsers may send requests from, may repeat; *: any");
    c.add_option("--max-queue", o.max_waiting, "Requests that may wait; the next gets status 429")
        ->capture_default_str()
        ->check(CLI::Range(int64_t{0}, kMostTokens));
    c.add_option("--max-body-mb", o.max_body_mb, "Largest body of a request")
        ->capture_default_str()
        ->check(CLI::Range(int64_t{1}, int64_t{1024}));
    c.add_option("--max-connections", o.max_connections, "Connections at once")
        ->capture_default_str()
        ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
    c.add_option("--timeout", o.timeout, "Seconds that a request may take; 0: any time")
        ->capture_default_str()
        ->check(seconds);
    c.add_option("--step-timeout", o.step_timeout,
                 "Seconds of one step after which /health fails until it is over; 0: never")
        ->capture_default_str()
        ->check(seconds);
    c.add_option("--shutdown-timeout", o.shutdown_timeout, "Seconds that running requests have to finish after SIGTERM")
        ->capture_default_str()
        ->check(seconds);
    c.add_option(
         "--retry-window", o.retry_window,
         "Seconds that an answer under an Idempotency-Key goes on without its client, and that answers to keys and "
         "request ids are kept for requests sent again; 0: none")
        ->capture_default_str()
        ->check(seconds);
    c.add_option("--sse-ping-interval", o.ping_interval, "Seconds of silence of a stream after which a comment is sent")
        ->capture_default_str()
        ->check(CLI::Range(0.1, 1e6));
    c.add_option("--stream-stall-timeout", o.stall_timeout,
                 "Seconds that a client may take nothing before it is dropped")
        ->capture_default_str()
        ->check(CLI::Range(0.1, 1e6));
    c.add_option("--metrics-prefix", o.metrics_prefix,
                 "In front of the names at /metrics; vllm: the names that vLLM's dashboards know")
        ->capture_default_str();
    c.add_flag("--no-access-log", o.no_log, "No line on stderr for each request");
    c.add_flag("-q,--quiet", o.quiet, "Nothing on stderr but requests and errors");
  }

  void add_chat() {
    CLI::App& c = command("chat", "A conversation in the model's own chat format", [this] { return chat(chat_); });
    add_load(c, chat_.load);
    add_drafts(c, chat_.load);
    chat_.load.prefix_snapshots = 2;  // of the last two turns: the next one begins alike
    c.add_option("--prefix-snapshots", chat_.load.prefix_snapshots,
                 "States kept of earlier turns, so that the next computes its own part alone; 0: none")
        ->capture_default_str();
    add_sampling(c, chat_.sampling);
    add_optional(c, "-p,--prompt", chat_.prompt,
                 "One question, one answer; calls of --tools are printed as JSON lines");
    c.add_option("--system,--system-prompt", chat_.system, "System message");
    c.add_option("--effort,--thinking-effort", chat_.effort, "low, medium, high, max")
        ->check(CLI::IsMember({"low", "medium", "high", "max"}));
    c.add_option("--tools", chat_.tools, "JSON file with tools as in the OpenAI API; you type their results")
        ->check(CLI::ExistingFile);
    c.add_flag("--no-history", chat_.no_history,
               "Neither read nor write ~/.kdelta_history, the last thousand lines typed on a terminal");
    c.add_flag("--no-think", chat_.no_think, "Answers without a thinking part");
    c.add_flag("--json", chat_.json, "With --prompt: one JSON object");
    c.add_flag("-q,--quiet", chat_.quiet, "Nothing on stderr but errors");
  }

  void add_inspect() {
    CLI::App& c = command("inspect", "Config, tensors, sizes and memory plan, from headers alone",
                          [this] { return inspect(inspect_); });
    add_load(c, inspect_.load);
    c.add_option("--max-num-seqs,-N", inspect_.load.max_sequences, "Requests at once to plan memory for")
        ->capture_default_str();
    c.add_option("--ranks", inspect_.load.ranks, "Plan one of N ranks, each of which holds a part of the model")
        ->capture_default_str();
    c.add_option("--expert-split", inspect_.load.expert_split,
                 "How ranks part routed experts: experts (whole ones), width (of each)")
        ->capture_default_str()
        ->check(CLI::IsMember({"experts", "width"}));
    c.add_flag("--tensors", inspect_.tensors, "List every tensor: name, type, shape, bytes, file");
    c.add_flag("--ops", inspect_.ops,
               "The ops of a step and the kernel each would run, and every name that --force takes");
    c.add_flag(
        "--check", inspect_.check,
        "Read every value too, the only part that needs more than headers: tensors with NaN or infinite ones are "
        "listed, and exit code 1");
    c.add_flag("--json", inspect_.json, "One JSON object in place of text");
  }

  void add_tokenize() {
    CLI::App& c = command("tokenize", "Text to token ids", [this] { return tokenize(tokenize_); });
    c.add_option("model,-m,--model,--model-path", tokenize_.model, "Checkpoint directory")
        ->required()
        ->check(CLI::ExistingDirectory);
    c.add_option("-p,--prompt,--text", tokenize_.text, "The text (default: standard input)");
    c.add_option("-f,--file", tokenize_.file,
                 "File with the text; -: standard input. One newline at its end is no part of it")
        ->check(readable, "FILE");
    c.add_flag("--parse-special", tokenize_.specials, "Names of special tokens become these tokens");
    c.add_flag("--ids", tokenize_.ids_only, "Print the ids alone, on one line");
    c.add_flag("--json", tokenize_.json, "A JSON list of ids and texts in place of lines");
    c.add_flag("--decode", tokenize_.decode, "The input is token ids; print their text");
  }

  void add_perplexity() {
    CLI::App& c = command("perplexity", "Perplexity of a text in windows", [this] { return perplexity(perplexity_); });
    add_load(c, perplexity_.load);
    c.add_option("-f,--file", perplexity_.file, "File with the text (default: standard input)")
        ->check(readable, "FILE");
    add_optional(c, "--ids", perplexity_.ids, "Token ids in place of text: a list or a file");
    c.add_option("--window", perplexity_.window, "Tokens per window, each from an empty state")
        ->capture_default_str()
        ->check(CLI::Range(int64_t{2}, kMostTokens));
    c.add_flag("--json", perplexity_.json, "One JSON object in place of text");
    c.add_flag("-q,--quiet", perplexity_.quiet, "Nothing on stderr but errors");
  }

  void add_bench() {
    CLI::App& c = command("bench", "Tokens per second: pp = prompt processing, tg = token generation",
                          [this] { return bench(bench_); });
    add_load(c, bench_.load);
    add_drafts(c, bench_.load);
    c.add_option(
         "--concurrency", bench_.concurrency,
         "Requests at once, by commas, each of the one --n-prompt and --n-gen: rows c1, c16, ... of one: tokens per "
         "second against those of c1, where that is among them; of roof: against what the model's ops would take at "
         "the "
         "rates of memory and arithmetic that this machine has just shown")
        ->check(CLI::Range(int64_t{1}, int64_t{4096}))
        ->delimiter(',')
        ->allow_extra_args(false);
    c.add_option("-p,--n-prompt", bench_.prompt, "Prompt lengths, by commas; 0: none")
        ->check(CLI::Range(int64_t{0}, kMostTokens))
        ->delimiter(',')
        ->allow_extra_args(false)
        ->capture_default_str();
    c.add_option("-n,--n-gen", bench_.generate, "Generated tokens, by commas; 0: none")
        ->check(CLI::Range(int64_t{0}, kMostTokens))
        ->delimiter(',')
        ->allow_extra_args(false)
        ->capture_default_str();
    c.add_option("-d,--n-depth", bench_.depth,
                 "Tokens of context before what is measured, by commas; multiples of --max-num-batched-tokens")
        ->check(CLI::Range(int64_t{0}, kMostTokens))
        ->delimiter(',')
        ->allow_extra_args(false)
        ->capture_default_str();
    c.add_option("-r,--repetitions", bench_.repetitions,
                 "How often each is measured; the table shows mean and deviation")
        ->capture_default_str()
        ->check(CLI::Range(1, 1000000));
    c.add_flag("--no-warmup{false}", bench_.warmup, "Skip the warm-up run");
    c.add_flag("-q,--quiet", bench_.quiet, "Nothing on stderr but errors");
    c.add_option("-o,--output", bench_.output, "md, csv, json, jsonl")
        ->capture_default_str()
        ->check(CLI::IsMember({"md", "csv", "json", "jsonl"}));
    CLI::App* serve = bench_serve_command_ = add_bench_serve(c, bench_serve_);
    CLI::Option* model = c.get_option("--model")->required(false);  // `bench serve` has its own
    c.callback([this, &c, serve, model] {
      const bool serves = c.got_subcommand(serve);
      if (!serves && model->count() == 0) throw CLI::RequiredError("--model");
      command_ = [this, serves] { return serves ? bench_serve(bench_serve_) : bench(bench_); };
    });
  }

  void add_quantize() {
    CLI::App& c = command("quantize", "A checkpoint with KDA q|k|v and routed experts in MXFP8, MXFP4 or int8",
                          [this] { return quantize(quantize_); });
    QuantizeOptions& o = quantize_.quantize;
    const CLI::IsMember formats({"mxfp8", "mxfp4", "int8", "keep"}), rules({"floor", "rceil", "even"});
    c.add_option("model,-m,--model,--model-path", o.model, "Checkpoint directory")
        ->required()
        ->check(CLI::ExistingDirectory);
    c.add_option("out,-o,--out", o.out, "The new directory; it grows as OUT.partial, where a stopped run goes on");
    c.add_option("--qkv", o.qkv, "KDA q, k and v: mxfp8, mxfp4, int8 (for other engines), keep")
        ->capture_default_str()
        ->check(formats);
    c.add_option("--experts", o.experts, "Routed experts: mxfp8, mxfp4, int8 (for other engines), keep")
        ->capture_default_str()
        ->check(formats);
    c.add_option("--scale-rule", o.weight_rule, "Scales of the weights: floor, rceil, even")
        ->capture_default_str()
        ->check(rules);
    c.add_option("--activation-scale-rule", o.activation_rule,
                 "Scales of activations where the result is run, here or by another engine: floor, rceil, even")
        ->capture_default_str()
        ->check(rules);
    c.add_option("-t,--threads", o.threads, "Threads; 0: every CPU this process may use")
        ->capture_default_str()
        ->check(CLI::Range(0, 1024));
    c.add_flag("--dry-run", o.dry_run, "Print the sizes and what a run would refuse, write nothing");
    c.add_flag("--json", quantize_.json, "One JSON object in place of text");
  }

  void add_logits() {
    CLI::App& c =
        command("logits", "Every position's logits to a safetensors file", [this] { return logits(logits_); });
    add_load(c, logits_.load);
    c.add_option("--ids", logits_.ids, "Token ids: a list or a file")->required();
    c.add_option("--out", logits_.logits.out, "The file to write")->required();
    c.add_option(
         "--chunk", logits_.logits.chunk,
         "Cut the prompt into pieces of N tokens, to compare cuts. Outside exact mode, which cuts at multiples of "
         "64 only: logits may differ in their last bits from those of the engine's own cuts (0, the default)")
        ->capture_default_str();
    c.add_option("--dump", logits_.dump, "Also: layers, router, state, by commas");
  }

  void add_documents() {
    CLI::App& c =
        command("completions", "Print a script that completes kdelta's commands and flags in a shell", [this] {
          fmt::print("{}", completions(option_table(app_), shell_));
          return 0;
        });
    c.add_option("shell", shell_, "bash: source <(kdelta completions bash)")
        ->required()
        ->check(CLI::IsMember({"bash", "zsh", "fish"}));
    command("manual", "Print the manual page, as in: kdelta manual | man -l -", [this] {
      fmt::print("{}", manual_page(option_table(app_), version()));
      return 0;
    });
  }

  CLI::App app_{"kdelta: runs Kimi K3 and Kimi-Linear models"};
  std::function<int()> command_;
  RunOptions run_;
  GenerateFlags generate_;
  ServeFlags serve_;
  ChatFlags chat_;
  InspectOptions inspect_;
  TokenizeOptions tokenize_;
  PerplexityOptions perplexity_;
  BenchOptions bench_;
  BenchServeOptions bench_serve_;
  CLI::App* bench_serve_command_ = nullptr;
  LogitsFlags logits_;
  QuantizeFlags quantize_;
  std::string shell_, config_;
};

}  // namespace
}  // namespace kdelta::cli

int main(int argc, char** argv) {
  kdelta::cli::open_standard_streams();
  std::signal(SIGXFSZ, SIG_IGN);  // a write beyond ulimit -f fails and is reported like one to a full disk
  kdelta::cli::catch_interrupts();
  kdelta::cli::Program program;
  return program.main(argc, argv);
}
