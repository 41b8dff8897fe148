// What is written from the option table beside --help.
#pragma once

#include <string>

#include "frontends/cli/option_table.h"

namespace kdelta::cli {

// kdelta(1) in roff.
std::string manual_page(const OptionTable& table, const std::string& version);
// A script that completes commands, options and their values. `shell`: bash, zsh, fish; throws UsageError for another.
std::string completions(const OptionTable& table, const std::string& shell);

}  // namespace kdelta::cli
