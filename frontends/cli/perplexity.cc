// kdelta perplexity: how well the model predicts a text.
#include <fmt/core.h>

#include <algorithm>
#include <stdexcept>

#include "frontends/cli/commands.h"
#include "frontends/cli/terminal.h"
#include "frontends/cli/usage.h"

namespace kdelta::cli {

int perplexity(const PerplexityOptions& o) {
  if (o.ids && !o.file.empty()) throw UsageError("perplexity: give one of --ids, --file, or standard input");
  LoadOptions load = o.load;
  load.all_logits = true;
  check_load(load);
  std::vector<int32_t> ids;
  std::string text;
  if (!o.ids) {
    text = read_whole_text(o.file.empty() ? "-" : o.file);
  } else {
    ids = parse_ids("--ids", *o.ids);
    check_ids("--ids", ids, read_limits(load.model).vocab_size);
    if (ids.size() < 2) throw UsageError("--ids: one token, expected at least two");
  }
  // No window is longer than its text, and no token shorter than a byte: memory is planned for that and not for a
  // number.
  const auto longest = static_cast<int64_t>(!o.ids ? text.size() : ids.size());
  const int64_t window = std::clamp<int64_t>(longest, 2, o.window);
  if (load.max_length > 0 && window > load.max_length)
    throw UsageError(fmt::format("--window: {}, expected at most --max-model-len {}", o.window, load.max_length));
  LengthFlags flags;
  if (window > load.max_length) flags.max_length = "--window";
  load.max_length = std::max(load.max_length, window);
  Engine engine = load_engine(load, o.quiet ? LoadReport::silent : o.json ? LoadReport::bar : LoadReport::whole, flags);
  if (!o.ids) ids = engine.tokenize(text);
  ProgressBar bar("perplexity", o.quiet);
  const Perplexity p = engine.perplexity(
      ids, window, [&](int64_t done, int64_t total) { bar.update(done, total, "tokens"); }, &interrupted);
  if (p.tokens == 0) throw std::runtime_error("perplexity: needs at least two tokens");
  const int64_t used = std::min(window, static_cast<int64_t>(ids.size()));
  if (used < o.window && !o.json && !o.quiet) say("note: the text is one window of {} tokens\n", used);
  if (o.json)
    fmt::print("{{\"perplexity\":{:.6f},\"nll\":{:.6f},\"tokens\":{},\"window\":{}}}\n", p.value(), p.nll, p.tokens,
               used);
  else
    fmt::print("perplexity {:.4f} over {} tokens (windows of {}, total nll {:.4f})\n", p.value(), p.tokens, used,
               p.nll);
  return 0;
}

}  // namespace kdelta::cli
