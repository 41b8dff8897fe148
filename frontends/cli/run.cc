// kdelta run: continues a prompt. The text goes to stdout as it is made; numbers go to stderr.
#include <fmt/core.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <random>
#include <stdexcept>

#include "frontends/cli/commands.h"
#include "frontends/cli/json_text.h"
#include "frontends/cli/sampling.h"
#include "frontends/cli/terminal.h"
#include "frontends/cli/usage.h"

namespace kdelta::cli {
namespace {

// Everything that can be wrong, before a model is loaded.
void check(const RunOptions& o) {
  const int given = (o.prompt ? 1 : 0) + (o.file.empty() ? 0 : 1) + (o.ids ? 1 : 0);
  if (given > 1 || (given == 0 && isatty(STDIN_FILENO) != 0))
    throw UsageError("run: give one of --prompt, --file, --ids, or text on standard input");
  if (o.prompt && o.prompt->empty()) throw UsageError("--prompt: empty");
  if (o.sampling.logprobs && !o.json) throw UsageError("--logprobs: goes with --json");
  check_load(o.load);
  check_sampling(o.sampling, o.load.model);
}

// The prompt as it was given: ids, or text that waits for the tokenizer.
struct Prompt {
  std::vector<int32_t> ids;
  std::string text;
};

Prompt read_prompt(const RunOptions& o) {
  Prompt p;
  if (o.ids) {
    p.ids = parse_ids("--ids", *o.ids);
    check_ids("--ids", p.ids, read_limits(o.load.model).vocab_size);
    return p;
  }
  p.text = o.prompt ? *o.prompt : read_prompt_text(o.file.empty() ? "-" : o.file);
  return p;
}

std::string ids_text(const std::vector<int32_t>& ids) {
  std::string out;
  for (int32_t id : ids) out += fmt::format("{}{}", out.empty() ? "" : ",", id);
  return out;
}

void print_json(const Generation& g, const GenerateOptions& o) {
  fmt::print(
      "{{\"text\":{},\"tokens\":[{}],\"finish_reason\":\"{}\",\"prompt_tokens\":{},\"seed\":{},\"prefill_seconds\":{:."
      "6f},\"decode_seconds\":{:.6f}",
      quoted(g.text), ids_text(g.tokens), g.finish_reason, g.prompt_tokens, o.seed, g.prefill_seconds,
      g.decode_seconds);
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

}  // namespace

int run(const RunOptions& o) {
  check(o);
  const Prompt prompt = read_prompt(o);
  Engine engine = load_engine(o.load, o.quiet ? LoadReport::silent : LoadReport::whole);
  GenerateOptions options = generate_options(engine, o.sampling);
  options.cancel = &interrupted;
  const std::vector<int32_t> ids = prompt.ids.empty() ? engine.tokenize(prompt.text, o.specials) : prompt.ids;
  if (!engine.has_tokenizer() && !o.json && !o.quiet)
    say("note: {}; token ids are printed\n", engine.tokenizer_problem());
  if (o.echo && !o.json && engine.has_tokenizer()) fmt::print("{}", engine.detokenize(ids, true));
  if (o.explain_step) engine.explain_steps([](const std::string& text) { say("step\n{}", text); });
  ProgressBar bar("prefill", o.quiet);
  options.prefill_progress = [&](int64_t done, int64_t total) { bar.update(done, total, "tokens"); };
  const Generation g = engine.generate(ids, options, [&](const std::string& text, const std::vector<int32_t>& tokens) {
    if (o.json) return;
    if (engine.has_tokenizer())
      fmt::print("{}", text);
    else
      fmt::print("{}\n", ids_text(tokens));
    std::fflush(stdout);
  });
  if (o.json)
    print_json(g, options);
  else if (engine.has_tokenizer())
    fmt::print("\n");
  if (!o.quiet) {
    const auto rate = [](int64_t n, double s) { return s > 0 && n > 0 ? static_cast<double>(n) / s : 0; };
    const auto generated = static_cast<int64_t>(g.tokens.size());
    say("\nprompt {} tokens, {:.1f} tokens/s; generated {} tokens, {:.1f} tokens/s; ended by {}; seed {}\n",
        g.prompt_tokens, rate(g.prompt_tokens, g.prefill_seconds), generated, rate(generated - 1, g.decode_seconds),
        g.finish_reason, options.seed);
    if (const WorkCounts w = engine.work(); w.drafts > 0)
      say("{} drafts, {} kept, {} steps\n", w.drafts, w.accepted_drafts, w.steps);
  }
  return g.finish_reason == "cancelled" ? kExitInterrupted : 0;
}

}  // namespace kdelta::cli
