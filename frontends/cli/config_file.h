// --config FILE: flags from a file.
#pragma once

#include <string>
#include <vector>

#include "frontends/cli/option_table.h"

namespace kdelta::cli {

// The words of a command line, with the flags that its --config (or KDELTA_ARG_CONFIG) names put in behind the command,
// so that what is typed wins; what the environment sets is left to it. The file is a JSON object of long names without
// their dashes: {"model": "DIR", "max-num-seqs": 32, "exact": true, "stop": ["a", "b"]}. Throws UsageError naming the
// file and the member.
std::vector<std::string> with_config(std::vector<std::string> words, const OptionTable& table);

}  // namespace kdelta::cli
