// Flags as environment variables: every long name of a flag is one, --max-tokens KDELTA_ARG_MAX_TOKENS.
#pragma once

#include <string>
#include <vector>

namespace kdelta::cli {

// Of the long names of one flag: the variable that is set, or the first name's when none is.
std::string environment_name(const std::vector<std::string>& names);
// Throws UsageError when two names of one flag are set to different values: nobody can tell which was meant.
void check_environment(const std::vector<std::string>& names);

}  // namespace kdelta::cli
