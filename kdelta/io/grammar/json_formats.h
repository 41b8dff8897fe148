// The formats of strings that JSON Schema names, as patterns of the whole string.
#pragma once

#include <string_view>

namespace kdelta::grammar {

// Empty for a format that is not known.
std::string_view format_pattern(std::string_view format);
// Of all that are, for messages.
const char* format_names();

}  // namespace kdelta::grammar
