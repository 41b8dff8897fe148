// Which functions an answer may call and which it must, in whatever words a dialect says it; what is asked of calls is
// enforced by a grammar.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "frontends/server/field_names.h"
#include "kdelta/api/json.h"
#include "kdelta/api/options.h"

namespace kdelta::server {

struct Function {
  std::string name;
  Json parameters;  // JSON Schema of its arguments, or null
  // true: every call's arguments are valid under the schema. Not said: those of calls that must be. false: they are an
  // object.
  std::optional<bool> strict;
};

struct ToolUse {
  enum class Choice : uint8_t { automatic, none, required };
  std::vector<Function> functions;
  Choice choice = Choice::automatic;
  std::vector<std::string> only;  // names of those that may be called; empty: all
  bool one = false;               // at most one call
};

// As the prompt declares it: {"type": "function", "function": {...}}.
Json declaration(const Function& function, const std::string& description);

// Makes the prompt and the grammar of it. Throws Error(invalid_argument) naming tool_choice when it asks for what
// `functions` lack.
void apply(const ToolUse& use, ChatSettings& settings, GenerateOptions& options);

// auto, required and, of tool_choice itself, none; absent: auto.
void read_mode(const JsonReader& from, const char* field, ToolUse& use);

// tools, tool_choice and parallel_tool_calls of a chat completion, whose tools are in `settings` already.
void read_chat_tools(const JsonReader& body, ChatSettings& settings, GenerateOptions& options, FieldNames& names);

}  // namespace kdelta::server
