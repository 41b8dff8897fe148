// The formats of strings that JSON Schema names, as patterns of the whole string.
#pragma once

#include <string_view>

#include "kdelta/io/grammar/schema_tree.h"

namespace kdelta::grammar {

// Of the keyword `format` of a schema. Throws naming the place when it is none of those that are known.
std::string_view known_format(const Json& format, const SchemaTree& tree, const Json& schema);

}  // namespace kdelta::grammar
