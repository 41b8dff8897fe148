// The body of the Anthropic Messages API, as a chat.
#include <utility>

#include "frontends/server/answer_request.h"
#include "frontends/server/tool_use.h"
#include "kdelta/api/request_fields.h"

namespace kdelta::server {
namespace {

using Readers = std::vector<JsonReader>;

// Prompts that begin alike are found without being told.
void read_cache_control(const JsonReader& from) {
  (void)from.raw("cache_control");
}

// A string, or blocks of text.
std::string text_of(const JsonReader& from, const char* field) {
  if (from.kind(field) == Json::Kind::string) return from.get<std::string>(field);
  std::string out;
  for (const JsonReader& block : from.find<Readers>(field).value_or(Readers{})) {
    if (block.get<std::string>("type") != "text") block.refuse("type", "text");
    out += block.get<std::string>("text");
    read_cache_control(block);
    read_nulls(block);
  }
  return out;
}

// Results of tools are messages of their own, in front of what the user says behind them.
void read_user(const JsonReader& m, std::vector<ChatMessage>& out, FieldNames& names) {
  if (m.kind("content") == Json::Kind::string) {
    out.push_back({.role = "user", .content = m.get<std::string>("content")});
    return;
  }
  bool speaks = false;
  for (const JsonReader& block : m.get<Readers>("content")) {
    const auto type = block.get<std::string>("type");
    if (!speaks || type != "text") names.messages.push_back({block.path()});
    if (type == "text") {
      if (!std::exchange(speaks, true)) out.push_back({.role = "user", .content = ""});
      out.back().content += block.get<std::string>("text");
    } else if (type == "tool_result") {
      speaks = false;
      // The chat formats have no place for it beside the text.
      const bool failed = block.find<bool>("is_error").value_or(false);
      out.push_back({.role = "tool",
                     .content = (failed ? "Error: " : "") + text_of(block, "content"),
                     .call_id = block.get<std::string>("tool_use_id")});
    } else {
      block.refuse("type", "text or tool_result");
    }
    read_cache_control(block);
    read_nulls(block);
  }
}

ChatMessage read_assistant(const JsonReader& m) {
  ChatMessage out{.role = "assistant", .content = ""};
  if (m.kind("content") == Json::Kind::string) {
    out.content = m.get<std::string>("content");
    return out;
  }
  for (const JsonReader& block : m.get<Readers>("content")) {
    const auto type = block.get<std::string>("type");
    if (type == "text") {
      out.content += block.get<std::string>("text");
    } else if (type == "thinking") {
      out.reasoning += block.get<std::string>("thinking");
      (void)block.find<std::string>("signature");
    } else if (type == "tool_use") {
      if (block.kind("input") != Json::Kind::object) block.refuse("input", "an object");
      out.calls.push_back(
          {block.get<std::string>("id"), block.get<std::string>("name"), json_text(*block.raw("input"))});
    } else {
      block.refuse("type", "text, thinking or tool_use");
    }
    read_cache_control(block);
    read_nulls(block);
  }
  return out;
}

std::vector<ChatMessage> read_conversation_of(const JsonReader& body, FieldNames& names) {
  std::vector<ChatMessage> out;
  if (body.kind("system").value_or(Json::Kind::null) != Json::Kind::null) {
    out.push_back({.role = "system", .content = text_of(body, "system")});
    names.messages.push_back({"system"});
  }
  const auto messages = body.get<Readers>("messages");
  if (messages.empty()) body.refuse("messages", "at least one message");
  std::string role;
  for (const JsonReader& m : messages) {
    role = m.get<std::string>("role");
    if (role == "user")
      read_user(m, out, names);
    else if (role == "assistant")
      out.push_back(read_assistant(m));
    else if (role == "system")
      out.push_back({.role = "system", .content = text_of(m, "content")});
    else
      m.refuse("role", "user, assistant or system");
    if (names.messages.size() < out.size()) names.messages.push_back({m.path()});
    read_nulls(m);
  }
  if (role == "assistant")
    messages.back().refuse("role", "user at the end: an answer that somebody has begun is not continued");
  return out;
}

ToolUse read_tools(const JsonReader& body, ChatSettings& settings, FieldNames& names) {
  ToolUse use;
  Json declared = Json::Array{};
  for (const JsonReader& tool : body.find<Readers>("tools").value_or(Readers{})) {
    if (tool.find<std::string>("type").value_or("custom") != "custom") tool.refuse("type", "custom");
    if (tool.kind("input_schema") != Json::Kind::object) tool.refuse("input_schema", "a JSON Schema");
    use.functions.push_back({.name = read_function_name(tool),
                             .parameters = *tool.raw("input_schema"),
                             .strict = tool.find<bool>("strict")});
    declared.array().push_back(declaration(use.functions.back(), tool.find<std::string>("description").value_or("")));
    names.tools.emplace_back(printable(use.functions.back().name), tool.path_of("input_schema"));
    (void)tool.raw("eager_input_streaming");  // it always is
    read_cache_control(tool);
    read_nulls(tool);
  }
  if (!declared.array().empty()) settings.tools_json = json_text(declared);
  const auto choice = body.find<JsonReader>("tool_choice");
  if (!choice) return use;
  const auto type = choice->get<std::string>("type");
  if (type == "any" || type == "tool")
    use.choice = ToolUse::Choice::required;
  else if (type == "none")
    use.choice = ToolUse::Choice::none;
  else if (type != "auto")
    choice->refuse("type", "auto, any, tool or none");
  if (type == "tool") {
    use.only = {choice->get<std::string>("name")};
    use.one = true;
  }
  use.one = choice->find<bool>("disable_parallel_tool_use").value_or(use.one);
  read_nulls(*choice);
  return use;
}

// Off unless it is asked for. A budget bounds it no more than max_tokens bounds everything.
void read_thinking(const JsonReader& body, AnswerRequest& r) {
  r.thinking = false;
  const auto thinking = body.find<JsonReader>("thinking");
  if (!thinking) return;
  const auto type = thinking->get<std::string>("type");
  if (type == "enabled")
    (void)thinking->get_in("budget_tokens", 1, INT64_MAX);
  else if (type != "adaptive" && type != "disabled")
    thinking->refuse("type", "enabled, adaptive or disabled");
  r.thinking = type != "disabled";
  const auto display = thinking->find<std::string>("display").value_or("summarized");
  if (display != "summarized" && display != "omitted") thinking->refuse("display", "summarized or omitted");
  r.show_thinking = display == "summarized";
  read_nulls(*thinking);
}

void read_output(const JsonReader& body, ChatSettings& settings, GenerateOptions& options) {
  const auto config = body.find<JsonReader>("output_config");
  if (!config) return;
  settings.effort = config->find<std::string>("effort").value_or("");
  if (const auto format = config->find<JsonReader>("format")) {
    if (format->get<std::string>("type") != "json_schema") format->refuse("type", "json_schema");
    if (format->kind("schema") != Json::Kind::object) format->refuse("schema", "a JSON Schema");
    options.constraint = Constraint{.kind = Constraint::Kind::json_schema, .text = json_text(*format->raw("schema"))};
  }
  read_nulls(*config);
}

}  // namespace

AnswerRequest read_message(const Engine& engine, const JsonReader& body, const GenerateOptions& defaults,
                           FieldNames& names, bool counts) {
  names.fields = {{"prompt", "messages"},       {"stop", "stop_sequences"},
                  {"tools", "tools"},           {"json_schema", "output_config.format.schema"},
                  {"max_tokens", "max_tokens"}, {"effort", "output_config.effort"}};
  for (const char* same : {"temperature", "top_p", "top_k", "min_p"}) names.fields.emplace_back(same, same);
  AnswerRequest r;
  r.chat = true;
  r.model = body.find<std::string>("model").value_or("");
  GenerateOptions o = defaults;
  if (!counts) o.max_tokens = body.get_in("max_tokens", 1, INT64_MAX);
  r.options = read_sampling(body, o);
  if (const auto stop = body.find<std::vector<std::string>>("stop_sequences")) r.options.stop = *stop;
  r.stream = body.find<bool>("stream").value_or(false);
  ChatSettings settings;
  const std::vector<ChatMessage> messages = read_conversation_of(body, names);
  read_thinking(body, r);
  settings.thinking = r.thinking;
  read_output(body, settings, r.options);
  apply(read_tools(body, settings, names), settings, r.options);
  tell_format(r.options, settings);
  check_options(r.options);
  check_options(settings);
  for (const char* field : {"metadata", "service_tier", "cache_control"}) (void)body.raw(field);
  read_nulls(body);
  refuse_unread(body);
  r.prompts.push_back(engine.chat_prompt(messages, settings));
  return r;
}

}  // namespace kdelta::server
