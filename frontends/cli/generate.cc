// kdelta generate: a file of requests in the OpenAI batch format, many at once; answers go to a file, progress to
// stderr.
#include <fmt/core.h>

#include "frontends/cli/commands.h"
#include "frontends/cli/json_text.h"
#include "frontends/cli/sampling.h"
#include "frontends/cli/terminal.h"
#include "frontends/cli/usage.h"
#include "kdelta/api/batch.h"

namespace kdelta::cli {
namespace {

std::string clock_text(double seconds) {
  const auto s = static_cast<int64_t>(seconds + 0.5);
  return s >= 3600 ? fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60)
                   : fmt::format("{}:{:02}", s / 60, s % 60);
}

std::string line_of(const BatchProgress& p) {
  const int64_t ended = p.done + p.failed, left = p.total - p.skipped - ended;
  const double rate = p.seconds > 0 ? static_cast<double>(p.tokens) / p.seconds : 0;
  const double each = ended > 0 ? p.seconds / static_cast<double>(ended) : 0;
  return fmt::format("{}/{} requests, {} failed, {:.1f} tokens/s, {} left", p.skipped + ended, p.total, p.failed, rate,
                     clock_text(each * static_cast<double>(left)));
}

}  // namespace

int generate(const GenerateFlags& o) {
  if (o.output == "-")
    throw UsageError("--output: -, expected a file: a later run goes on from the answers that it holds");
  check_load(o.load);
  check_sampling(o.sampling, o.load.model);
  BatchOptions options{.input = o.input == "-" ? "/dev/stdin" : o.input, .output = o.output};
  std::vector<BatchLine> lines = read_batch(options);
  Engine engine =
      load_engine(o.load, o.quiet ? LoadReport::silent : LoadReport::whole, {.max_sequences = "--max-num-seqs"});
  options.defaults = generate_options(engine, o.sampling);
  options.cancel = &interrupted;
  options.progress = [&](const BatchProgress& p) {
    if (!o.quiet) say("{}\n", line_of(p));
  };
  int64_t told = 0;
  options.failed = [&](const std::string& id, const std::string& why) {
    constexpr int64_t kMost = 10;  // the rest is in the file alone
    if (++told <= kMost)
      say("kdelta: request {}: {}{}\n", quoted(id), why, told == kMost ? "; others: see " + o.output : "");
  };
  if (!o.quiet) note_seed(o.sampling, options.defaults);
  const BatchProgress p = run_batch(engine, options, std::move(lines));
  if (!o.quiet)
    say("{} answered, {} failed, {} from an earlier run; prompts {} tokens ({} from prefixes), answers {} tokens; "
        "{}\n",
        p.done, p.failed, p.skipped, p.prompt_tokens, p.cached_tokens, p.tokens, clock_text(p.seconds));
  const WorkCounts w = engine.work();
  if (w.followed > 0 && !o.quiet) say("{} requests waited for a beginning that another computed\n", w.followed);
  if (!o.quiet && o.load.drafts > 0) say("{} drafts, {} kept, {} steps\n", w.drafts, w.accepted_drafts, w.steps);
  if (interrupted) return kExitInterrupted;
  return p.failed > 0 ? kExitFailed : 0;
}

}  // namespace kdelta::cli
