#include "kdelta/api/messages.h"

#include "kdelta/api/request_fields.h"
#include "kdelta/core/check.h"

namespace kdelta {
namespace {

// Only an assistant may have said nothing: he has called, or thought.
std::string content_of(const JsonReader& message, bool may_lack) {
  if (!may_lack && message.kind("content").value_or(Json::Kind::null) == Json::Kind::null)
    message.refuse("content", "a text, or parts of text");
  if (message.kind("content") == Json::Kind::string) return message.get<std::string>("content");
  std::string text;
  for (const JsonReader& part : message.find<std::vector<JsonReader>>("content").value_or(std::vector<JsonReader>{})) {
    if (part.get<std::string>("type") != "text") part.refuse("type", "text");
    text += part.get<std::string>("text");
  }
  return text;
}

// Clients send back what they were given, under either name.
std::string reasoning_of(const JsonReader& message) {
  const auto one = message.find<std::string>("reasoning"), other = message.find<std::string>("reasoning_content");
  if (one && other && *one != *other) message.refuse("reasoning_content", "what reasoning says, or one of both");
  return one.value_or(other.value_or(""));
}

}  // namespace

ChatMessage read_message(const JsonReader& m) {
  const auto role = m.get<std::string>("role");
  ChatMessage out{.role = role == "developer" ? "system" : role,
                  .content = "",
                  .name = m.find<std::string>("name").value_or(""),
                  .reasoning = reasoning_of(m),
                  .calls = {},
                  .call_id = m.find<std::string>("tool_call_id").value_or("")};
  for (const JsonReader& call : m.find<std::vector<JsonReader>>("tool_calls").value_or(std::vector<JsonReader>{})) {
    if (call.find<std::string>("type").value_or("function") != "function") call.refuse("type", "function");
    const auto function = call.get<JsonReader>("function");
    out.calls.push_back({call.find<std::string>("id").value_or(""), read_function_name(function),
                         function.get<std::string>("arguments")});
  }
  out.content = content_of(m, role == "assistant" && (!out.calls.empty() || !out.reasoning.empty()));
  return out;
}

std::vector<ChatMessage> Engine::read_messages(const std::string& lines, const std::string& source) {
  std::vector<ChatMessage> all;
  int64_t number = 0;
  for (size_t at = 0; at < lines.size();) {
    const size_t end = std::min(lines.find('\n', at), lines.size());
    const std::string line = lines.substr(at, end - at);
    at = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const JsonSource from{.name = str(source, ": line ", number), .code = ErrorCode::bad_file};
    all.push_back(read_message(JsonReader(parse_json(line, from), from)));
  }
  return all;
}

}  // namespace kdelta
