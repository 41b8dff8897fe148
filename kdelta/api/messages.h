// Messages of conversations as the OpenAI API writes them.
#pragma once

#include "kdelta/api/engine.h"
#include "kdelta/io/json_reader.h"

namespace kdelta {

// role, where a developer is a system; content as a string or parts of text, which only an assistant that calls tools
// may leave out; name, reasoning (or reasoning_content), tool_calls, tool_call_id where they are.
ChatMessage read_message(const JsonReader& message);

}  // namespace kdelta
