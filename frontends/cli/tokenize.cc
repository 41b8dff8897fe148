// kdelta tokenize: text to ids and back.
#include <fmt/core.h>

#include "frontends/cli/commands.h"
#include "frontends/cli/json_text.h"
#include "frontends/cli/terminal.h"
#include "frontends/cli/usage.h"

namespace kdelta::cli {

int tokenize(const TokenizeOptions& o) {
  if (o.text && !o.file.empty()) throw UsageError("tokenize: give one of --text, --file, or text on standard input");
  LoadOptions load{.model = o.model};
  load.headers_only = true;
  const Engine engine = Engine::load(load);
  const std::string path = o.file.empty() ? "-" : o.file;
  const std::string text = o.text ? *o.text : without_last_newline(read_text(path));
  check_text(text, o.text ? "--text" : name_of_text(path));
  if (o.decode) {
    const std::vector<int32_t> ids = parse_ids("--decode", text);
    check_ids("--decode", ids, engine.vocab_size());
    fmt::print("{}\n", engine.detokenize(ids, true));
    return 0;
  }
  const std::vector<int32_t> ids = engine.tokenize(text, o.specials);
  if (o.json) fmt::print("[");
  for (size_t i = 0; i < ids.size(); ++i) {
    if (o.json)
      fmt::print("{}{{\"id\":{},\"text\":{}}}", i == 0 ? "" : ",", ids[i], quoted(engine.detokenize({ids[i]}, true)));
    else if (o.ids_only)
      fmt::print("{}{}", i == 0 ? "" : " ", ids[i]);
    else
      fmt::print("{:>8}  {}\n", ids[i], quoted(engine.detokenize({ids[i]}, true)));
  }
  if (o.json) fmt::print("]");
  if (o.json || o.ids_only) fmt::print("\n");
  return 0;
}

}  // namespace kdelta::cli
