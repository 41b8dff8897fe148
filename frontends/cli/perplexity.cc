// kdelta perplexity: how well the model predicts a text.
#include <fmt/core.h>

#include "frontends/cli/commands.h"
#include "frontends/cli/terminal.h"

namespace kdelta::cli {

int perplexity(const PerplexityOptions& o) {
  LoadOptions load = o.load;
  load.all_logits = true;
  load.max_length = std::max(load.max_length, o.window);
  Engine engine = load_engine(load, o.json);
  const std::vector<int32_t> ids =
      o.ids.empty() ? engine.tokenize(read_text(o.file.empty() ? "-" : o.file)) : parse_ids(o.ids);
  ProgressBar bar("perplexity");
  const Perplexity p = engine.perplexity(
      ids, o.window, [&](int64_t done, int64_t total) { bar.update(done, total, "tokens"); }, &interrupted);
  if (p.tokens == 0) throw std::runtime_error("perplexity: needs at least two tokens");
  if (o.json)
    fmt::print("{{\"perplexity\":{:.6f},\"nll\":{:.6f},\"tokens\":{},\"window\":{}}}\n", p.value(), p.nll, p.tokens,
               o.window);
  else
    fmt::print("perplexity {:.4f} over {} tokens (windows of {}, total nll {:.4f})\n", p.value(), p.tokens, o.window,
               p.nll);
  return 0;
}

}  // namespace kdelta::cli
