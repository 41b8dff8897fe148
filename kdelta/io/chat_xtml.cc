// The prompt of Kimi K3. Element: <|open|>tag key="value"<|sep|> body <|close|>tag<|sep|>; a message also ends in
// <|end_of_msg|>.
#include <algorithm>
#include <optional>

#include "kdelta/core/check.h"
#include "kdelta/io/chat_prompt.h"

namespace kdelta {
namespace {

using Attributes = std::initializer_list<std::pair<std::string_view, std::string>>;

void open(PromptWriter& out, std::string_view tag, Attributes attributes = {}) {
  out.special("<|open|>");
  out.text(tag);
  for (const auto& [key, value] : attributes) {
    if (value.empty() && key == "name") continue;
    out.text(str(" ", key));
    out.text("=\"");
    out.text(xtml_escaped(value));
    out.text("\"");
  }
  out.special("<|sep|>");
}

void close(PromptWriter& out, std::string_view tag) {
  out.special("<|close|>");
  out.text(tag);
  out.special("<|sep|>");
}

void end_message(PromptWriter& out) {
  close(out, "message");
  out.special("<|end_of_msg|>");
}

void element(PromptWriter& out, std::string_view tag, Attributes attributes, std::string_view body) {
  open(out, tag, attributes);
  out.text(body);
  close(out, tag);
}

void system_message(PromptWriter& out, std::string_view type, std::string_view body) {
  open(out, "message", {{"role", "system"}, {"type", std::string(type)}});
  out.text(body);
  end_message(out);
}

std::string fenced(const Json& value) {
  return str("```json\n", json_text(value, {.sort_keys = true}), "\n```");
}

void declare_tools(PromptWriter& out, const Json& tools) {
  system_message(out, "tool-declare",
                 str("# Tools\nHere are the available tools, described in JSONSchema.\n\n", fenced(tools)));
}

void extend_tools(PromptWriter& out, const Json& tools) {
  system_message(
      out, "tool-declare",
      str("## New Tools Available\nThe system dynamically extends the toolset via lazy-loading.\n"
          "You have access to all existing and extended tools.\nHere are the specs for the extended tools.\n\n",
          fenced(tools)));
}

void thinking_effort(PromptWriter& out, std::string_view effort) {
  const std::string_view accepted[] = {"low", "medium", "high", "max"};
  if (std::find(std::begin(accepted), std::end(accepted), effort) == std::end(accepted))
    fail(ErrorCode::invalid_argument, "effort: '", printable(effort), "', accepted: low, medium, high, max");
  system_message(out, "thinking-effort",
                 str("`thinking_effort` guides on how much to think in your thinking channel (not including the "
                     "response channel), "
                     "supported values include `low`, `medium`, `high`, and `max`.\n"
                     "Now the system is invoked with `thinking_effort=",
                     effort, "`."));
}

// nullopt when the text is no JSON that we read.
std::optional<Json> parse_arguments(const std::string& text, const std::string& field) {
  if (is_blank(text)) return Json(Json::Object{});
  try {
    return parse_json(text, {field, ErrorCode::invalid_argument}, {.max_bytes = std::ssize(text)});
  } catch (const Error& e) {
    if (e.code() != ErrorCode::invalid_argument) throw;
    return std::nullopt;
  }
}

void tool_call(PromptWriter& out, const ToolCall& call, size_t index, const std::string& field) {
  const std::optional<Json> arguments = parse_arguments(call.arguments, field);
  if (arguments && arguments->kind() != Json::Kind::object)
    fail(ErrorCode::invalid_argument, field, ".arguments: ", describe(*arguments), ", expected an object");
  open(out, "call", {{"tool", call.name}, {"index", std::to_string(index)}});
  if (!arguments) {
    element(out, "json", {{"type", "object"}}, call.arguments);
  } else {
    for (const JsonMember& argument : arguments->object()) {
      const Json& value = argument.value;
      const std::string body = value.kind() == Json::Kind::string ? value.string() : json_text(value, {.spaced = true});
      element(out, "argument", {{"key", argument.key}, {"type", std::string(xtml_type(value))}}, body);
    }
  }
  close(out, "call");
}

void assistant_message(PromptWriter& out, const Message& m, bool thinking, const std::string& field) {
  open(out, "message", {{"role", "assistant"}, {"name", m.name}});
  if (thinking) element(out, "think", {}, is_blank(m.reasoning) ? std::string_view() : m.reasoning);
  element(out, "response", {}, m.content);
  if (!m.calls.empty()) {
    open(out, "tools");
    for (size_t i = 0; i < m.calls.size(); ++i) tool_call(out, m.calls[i], i + 1, str(field, ".calls[", i, "]"));
    close(out, "tools");
  }
  end_message(out);
}

// A message to render: tool results may stand elsewhere than in the conversation, under the name of the call they
// answer.
struct Entry {
  const Message* message;
  size_t position;        // in the conversation, for messages of errors
  std::string_view tool;  // of a tool result; empty: not known yet
};

size_t call_position(std::span<const ToolCall> calls, const std::string& id) {
  size_t i = 0;
  while (i < calls.size() && (id.empty() || calls[i].id != id)) ++i;
  return i;
}

// Sorts one run of tool results by the call they answer, if each answers one; the name of the call is then the tool's.
void order_results(std::span<Entry> run, std::span<const ToolCall> calls) {
  const auto position = [&](const Entry& e) { return call_position(calls, e.message->call_id); };
  if (std::any_of(run.begin(), run.end(), [&](const Entry& e) { return position(e) == calls.size(); })) return;
  std::stable_sort(run.begin(), run.end(), [&](const Entry& a, const Entry& b) { return position(a) < position(b); });
  for (Entry& e : run) e.tool = calls[position(e)].name;
}

std::vector<Entry> in_order(std::span<const Message> messages) {
  std::vector<Entry> entries;
  for (size_t i = 0; i < messages.size(); ++i) entries.push_back({&messages[i], i, {}});
  std::span<const ToolCall> calls;
  for (size_t i = 0; i < entries.size();) {
    if (messages[i].role == Role::assistant) calls = messages[i].calls;
    size_t end = i;
    while (end < entries.size() && messages[end].role == Role::tool) ++end;
    order_results(std::span(entries).subspan(i, end - i), calls);
    i = std::max(end, i + 1);
  }
  return entries;
}

// Results count from one behind each assistant message; one without a name takes that of the call with its number.
class ResultNumbering {
 public:
  void begin(std::span<const ToolCall> calls) {
    calls_ = calls;
    count_ = 0;
  }
  void write(PromptWriter& out, const Entry& e) {
    ++count_;
    std::string_view tool = e.tool.empty() ? std::string_view(e.message->name) : e.tool;
    if (tool.empty() && count_ <= calls_.size()) tool = calls_[count_ - 1].name;
    if (tool.empty())
      fail(ErrorCode::invalid_argument, "messages[", e.position,
           "]: a tool result without a name, and no call that it could answer");
    open(out, "message", {{"role", "tool"}, {"tool", std::string(tool)}, {"index", std::to_string(count_)}});
    out.text(e.message->content);
    end_message(out);
  }

 private:
  std::span<const ToolCall> calls_;
  size_t count_ = 0;
};

void conversation(PromptWriter& out, std::span<const Message> messages, bool thinking) {
  ResultNumbering results;
  for (const Entry& e : in_order(messages)) {
    const Message& m = *e.message;
    const std::string field = str("messages[", e.position, "]");
    if (m.role == Role::tool) {
      results.write(out, e);
    } else if (m.role == Role::assistant) {
      results.begin(m.calls);
      assistant_message(out, m, thinking, field);
    } else if (m.role == Role::system && has_tools(m.tools, field + ".tools")) {
      extend_tools(out, m.tools);
    } else {
      open(out, "message", {{"role", std::string(role_name(m.role))}, {"name", m.name}});
      out.text(m.content);
      end_message(out);
    }
  }
}

void tool_choice(PromptWriter& out, ToolChoice choice) {
  switch (choice) {
    case ToolChoice::automatic:
      return;
    case ToolChoice::none:
      return system_message(
          out, "tool-choice",
          "The system is invoked with `tool_choice=none`.\nYou MUST NOT call any tools in the next message.");
    case ToolChoice::required:
      return system_message(
          out, "tool-choice",
          "The system is invoked with `tool_choice=required`.\nYou MUST call tools in the next message.");
  }
  KDELTA_UNREACHABLE("tool choice", choice);
}

void response_format(PromptWriter& out, ResponseFormat format, const Json& schema) {
  const auto write = [&](std::string_view name, std::string_view more) {
    system_message(out, "response-format",
                   str("The system is invoked with `response_format=", name,
                       "`.\nYour response must be raw JSON data without markdown "
                       "code blocks (```json) or any additional formatting.",
                       more));
  };
  switch (format) {
    case ResponseFormat::text:
      return;
    case ResponseFormat::json_object:
      return write("json_object", "");
    case ResponseFormat::json_schema:
      if (schema.is_null()) fail(ErrorCode::invalid_argument, "response_schema: missing for json_schema");
      return write("json_schema", str("\nThe JSON data must match the following schema:\n", fenced(schema)));
  }
  KDELTA_UNREACHABLE("response format", format);
}

}  // namespace

std::string xtml_escaped(std::string_view value) {
  std::string out;
  for (char c : value) {
    if (c == '&')
      out += "&amp;";
    else if (c == '"')
      out += "&quot;";
    else
      out += c;
  }
  return out;
}

void write_xtml_prompt(PromptWriter& out, std::span<const Message> messages, const ChatOptions& options) {
  if (has_tools(options.tools, "tools")) declare_tools(out, options.tools);
  if (options.thinking && !options.effort.empty()) thinking_effort(out, options.effort);
  conversation(out, messages, options.thinking);
  tool_choice(out, options.tool_choice);
  response_format(out, options.response_format, options.response_schema);
  if (!options.generation_prompt) return;
  open(out, "message", {{"role", "assistant"}});
  open(out, options.thinking ? "think" : "response");
}

}  // namespace kdelta
