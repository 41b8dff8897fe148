// JSON that the program writes.
#pragma once

#include <string>

#include "kdelta/api/engine.h"

namespace kdelta::cli {

// Text as a JSON string, quoted.
std::string quoted(const std::string& text);

// A message of a conversation on one line, as the OpenAI API spells it: tool calls and what ties results to them
// included, members that are empty left out, the reasoning of an answer as "reasoning".
std::string message_line(const ChatMessage& message);

}  // namespace kdelta::cli
