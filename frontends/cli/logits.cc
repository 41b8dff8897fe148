// kdelta logits: every position's logits and chosen intermediates to a safetensors file, for parity checks by anyone.
#include <fmt/core.h>

#include "frontends/cli/commands.h"
#include "frontends/cli/terminal.h"
#include "frontends/cli/usage.h"

namespace kdelta::cli {

int logits(const LogitsFlags& o) {
  LoadOptions load = o.load;
  load.all_logits = true;
  check_load(load);
  const std::vector<int32_t> ids = parse_ids("--ids", o.ids);
  check_ids("--ids", ids, read_limits(load.model).vocab_size);
  LengthFlags flags;
  if (std::ssize(ids) > load.max_length) flags.max_length = "the number of --ids,";
  load.max_length = std::max(load.max_length, std::ssize(ids));
  LogitsOptions options = o.logits;
  for (size_t at = 0; at < o.dump.size();) {
    const size_t comma = std::min(o.dump.find(',', at), o.dump.size());
    options.dump.insert(o.dump.substr(at, comma - at));
    at = comma + 1;
  }
  options.cancel = &interrupted;
  check_options(options, load.model);
  Engine engine = load_engine(load, LoadReport::bar, flags);
  engine.logits(ids, options);
  say("{} positions written to {}\n", ids.size(), options.out);
  return 0;
}

}  // namespace kdelta::cli
