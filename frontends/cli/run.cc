// kdelta run: continues a prompt. The text goes to stdout as it is made; numbers go to stderr.
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "frontends/cli/commands.h"
#include "frontends/cli/json_text.h"
#include "frontends/cli/open_line.h"
#include "frontends/cli/sampling.h"
#include "frontends/cli/terminal.h"
#include "frontends/cli/usage.h"

namespace kdelta::cli {
namespace {

// Everything that can be wrong, before a model is loaded.
void check(const RunOptions& o) {
  const int given =
      (o.prompts.empty() ? 0 : 1) + (o.file.empty() ? 0 : 1) + (o.prompts_file.empty() ? 0 : 1) + (o.ids ? 1 : 0);
  if (given > 1 || (given == 0 && isatty(STDIN_FILENO) != 0))
    throw UsageError("run: give one of --prompt, --file, --prompts, --ids, or text on standard input");
  for (const std::string& p : o.prompts) {
    if (p.empty()) throw UsageError("--prompt: empty");
    check_text(p, "--prompt");
  }
  if (o.sampling.logprobs && !o.json) throw UsageError("--logprobs: goes with --json");
  check_sampling(o.sampling, o.load.model);
}

// A prompt as it was given: ids, or text that waits for the tokenizer.
struct Prompt {
  std::vector<int32_t> ids;
  std::string text;
  int64_t line = 0;  // of --prompts
};

std::vector<Prompt> lines_of(const std::string& text) {
  std::vector<Prompt> all;
  int64_t line = 0;
  for (size_t at = 0; at < text.size();) {
    ++line;
    const size_t end = std::min(text.find('\n', at), text.size());
    const size_t last = text.find_last_not_of('\r', end - 1);
    if (end > at && last != std::string::npos && last >= at) {
      all.push_back({.ids = {}, .text = text.substr(at, last + 1 - at), .line = line});
      check_text(all.back().text, fmt::format("--prompts: line {}", line));
    }
    at = end + 1;
  }
  if (all.empty()) throw UsageError("--prompts: no prompt");
  return all;
}

std::vector<Prompt> read_prompts(const RunOptions& o) {
  if (o.ids) {
    Prompt p{.ids = parse_ids("--ids", *o.ids), .text = {}};
    check_ids("--ids", p.ids, read_limits(o.load.model).vocab_size);
    return {std::move(p)};
  }
  if (!o.prompts_file.empty()) return lines_of(read_text(o.prompts_file));
  std::vector<Prompt> all;
  for (const std::string& text : o.prompts) all.push_back({.ids = {}, .text = text});
  if (all.empty()) all.push_back({.ids = {}, .text = read_prompt(o.file.empty() ? "-" : o.file)});
  return all;
}

std::string ids_text(const std::vector<int32_t>& ids) {
  std::string out;
  for (int32_t id : ids) out += fmt::format("{}{}", out.empty() ? "" : ",", id);
  return out;
}

// Of several prompts none has seconds of its own: they share steps.
void print_json(const Generation& g, const GenerateOptions& o, bool alone) {
  fmt::print("{{\"text\":{},\"tokens\":[{}],\"finish_reason\":\"{}\",\"prompt_tokens\":{},\"seed\":{}", quoted(g.text),
             ids_text(g.tokens), g.finish_reason, g.prompt_tokens, o.seed);
  if (alone) fmt::print(",\"prefill_seconds\":{:.6f},\"decode_seconds\":{:.6f}", g.prefill_seconds, g.decode_seconds);
  if (!g.logprobs.empty()) {
    fmt::print(",\"logprobs\":[");
    for (size_t i = 0; i < g.logprobs.size(); ++i) {
      const TokenLogprobs& l = g.logprobs[i];
      fmt::print("{}{{\"token\":{},\"logprob\":{:.6f},\"top\":[", i == 0 ? "" : ",", l.token, l.logprob);
      for (size_t j = 0; j < l.top.size(); ++j)
        fmt::print("{}[{},{:.6f}]", j == 0 ? "" : ",", l.top[j].first, l.top[j].second);
      fmt::print("]}}");
    }
    fmt::print("]");
  }
  fmt::print("}}\n");
}

double rate(int64_t n, double seconds) {
  return seconds > 0 && n > 0 ? static_cast<double>(n) / seconds : 0;
}

// One prompt: the text appears as it is made.
int run_one(Engine& engine, const RunOptions& o, GenerateOptions options, const std::vector<int32_t>& ids) {
  ProgressBar bar("prefill", o.quiet);
  options.prefill_progress = [&](int64_t done, int64_t total) { bar.update(done, total, "tokens"); };
  OpenLine line;
  if (o.echo && !o.json && engine.has_tokenizer()) line.print(engine.detokenize(ids, true));
  const Generation g = engine.generate(ids, options, [&](const std::string& text, const std::vector<int32_t>& tokens) {
    if (o.json) return;
    if (engine.has_tokenizer())
      line.print(text);
    else
      fmt::print("{}\n", ids_text(tokens));
    std::fflush(stdout);
  });
  if (o.json)
    print_json(g, options, true);
  else if (engine.has_tokenizer())
    line.end();
  if (!o.quiet) {
    const auto generated = static_cast<int64_t>(g.tokens.size());
    say("\nprompt {} tokens, {:.1f} tokens/s; generated {} tokens, {:.1f} tokens/s; ended by {}; seed {}\n",
        g.prompt_tokens, rate(g.prompt_tokens, g.prefill_seconds), generated, rate(generated - 1, g.decode_seconds),
        g.finish_reason, options.seed);
  }
  return g.finish_reason == "cancelled" ? kExitInterrupted : 0;
}

// Several at once, each printed when all before it are. Every answer is the one its prompt gets alone.
class Several {
 public:
  Several(Engine& engine, const RunOptions& o, const GenerateOptions& options,
          std::vector<std::vector<int32_t>> prompts, const std::vector<Prompt>& given)
      : engine_(engine),
        o_(o),
        options_(options),
        prompts_(std::move(prompts)),
        given_(given),
        answers_(prompts_.size()) {}

  int run() {
    const auto begin = std::chrono::steady_clock::now();
    size_t next = 0;
    engine_.generate_many(
        [&](GenerateTask* task) {
          if (next == prompts_.size()) return false;
          *task = {prompts_[next++], options_};
          return true;
        },
        [&](int64_t number, Generation g) {
          answers_[static_cast<size_t>(number)] = std::move(g);
          for (; printed_ < answers_.size() && answers_[printed_]; ++printed_) print(printed_);
        },
        &interrupted);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (!o_.quiet)
      say("{} prompts of {} tokens, generated {} tokens, {:.1f} tokens/s; {} failed; seed {}\n", prompts_.size(),
          prompt_tokens_, tokens_, rate(tokens_, seconds), failed_, options_.seed);
    if (interrupted) return kExitInterrupted;
    return failed_ > 0 ? kExitFailed : 0;
  }

 private:
  void print(size_t i) {
    const Generation& g = *answers_[i];
    if (!o_.quiet) say("[{} of {}]\n", i + 1, prompts_.size());
    if (!g.error.empty()) {
      ++failed_;
      const int64_t line = given_[i].line;
      say("kdelta: {}: {}\n", line > 0 ? fmt::format("--prompts: line {}", line) : fmt::format("prompt {}", i + 1),
          in_words_of_flags(g.error));
    }
    prompt_tokens_ += g.prompt_tokens;
    tokens_ += static_cast<int64_t>(g.tokens.size());
    if (o_.json)
      print_json(g, options_, false);
    else if (engine_.has_tokenizer())
      fmt::print("{}{}\n", o_.echo ? engine_.detokenize(prompts_[i], true) : "", g.text);
    else
      fmt::print("{}\n", ids_text(g.tokens));
    std::fflush(stdout);
  }

  Engine& engine_;
  const RunOptions& o_;
  const GenerateOptions& options_;
  std::vector<std::vector<int32_t>> prompts_;
  const std::vector<Prompt>& given_;
  std::vector<std::optional<Generation>> answers_;
  size_t printed_ = 0;
  int64_t failed_ = 0, prompt_tokens_ = 0, tokens_ = 0;
};

}  // namespace

int run(const RunOptions& o) {
  check(o);
  LoadOptions load = o.load;
  if (load.max_sequences == 0) load.max_sequences = 1;
  check_load(load);
  const std::vector<Prompt> prompts = read_prompts(o);
  if (o.load.max_sequences == 0)
    load.max_sequences = std::min({std::ssize(prompts), std::ptrdiff_t{16}, load.token_budget});
  Engine engine = load_engine(load, o.quiet ? LoadReport::silent : LoadReport::whole,
                              {.max_sequences = prompts.size() > 1 ? "--max-num-seqs" : ""});
  GenerateOptions options = generate_options(engine, o.sampling);
  if (!o.quiet) note_seed(o.sampling, options);
  std::vector<std::vector<int32_t>> ids;
  for (const Prompt& p : prompts) ids.push_back(p.ids.empty() ? engine.tokenize(p.text, o.specials) : p.ids);
  if (!engine.has_tokenizer() && !o.json && !o.quiet)
    say("note: {}; token ids are printed\n", engine.tokenizer_problem());
  if (o.explain_step) engine.explain_steps([](const std::string& text) { say("step\n{}", text); });
  int status = 0;
  if (ids.size() > 1) {
    status = Several(engine, o, options, std::move(ids), prompts).run();
  } else {
    options.cancel = &interrupted;
    status = run_one(engine, o, options, ids.front());
  }
  if (const WorkCounts w = engine.work(); w.drafts > 0 && !o.quiet)
    say("{} drafts, {} kept, {} steps\n", w.drafts, w.accepted_drafts, w.steps);
  return status;
}

}  // namespace kdelta::cli
