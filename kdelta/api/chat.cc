// Engine::chat: conversations in the model's own format.
#include "kdelta/io/chat.h"
#include "kdelta/api/answer_text.h"
#include "kdelta/api/engine_impl.h"
#include "kdelta/core/check.h"
#include "kdelta/io/json.h"

namespace kdelta {
namespace {

Role parse_role(const std::string& role, size_t message) {
  if (role == "system") return Role::system;
  if (role == "user") return Role::user;
  if (role == "assistant") return Role::assistant;
  if (role == "tool") return Role::tool;
  fail(ErrorCode::invalid_argument, "messages[", message, "].role: '", printable(role),
       "', accepted: system, user, assistant, tool");
}

Message message_of(const ChatMessage& m, size_t number) {
  Message out{.role = parse_role(m.role, number),
              .name = m.name,
              .content = m.content,
              .reasoning = m.reasoning,
              .calls = {},
              .call_id = m.call_id,
              .tools = {}};
  for (const ChatToolCall& c : m.calls) out.calls.push_back({c.id, c.name, c.arguments});
  return out;
}

ChatOptions options_of(const ChatSettings& s) {
  ChatOptions o{.thinking = s.thinking, .effort = s.effort};
  if (s.must_call) o.tool_choice = ToolChoice::required;
  if (s.answer_format == "json_object") o.response_format = ResponseFormat::json_object;
  if (s.answer_format == "json_schema") {
    o.response_format = ResponseFormat::json_schema;
    o.response_schema = parse_json(s.schema_json, {.name = "json_schema", .code = ErrorCode::invalid_argument});
  }
  if (!s.tools_json.empty()) o.tools = parse_json(s.tools_json, {.name = "tools", .code = ErrorCode::invalid_argument});
  return o;
}

}  // namespace

std::vector<int32_t> Engine::chat_prompt(const std::vector<ChatMessage>& messages, const ChatSettings& settings) const {
  std::vector<Message> converted;
  for (const ChatMessage& m : messages) {
    const std::string name = str("message ", converted.size() + 1, " (", printable(m.role), ")");
    for (const std::string* text : {&m.content, &m.name, &m.reasoning, &m.call_id}) check_text(*text, name);
    for (const ChatToolCall& c : m.calls)
      for (const std::string* text : {&c.id, &c.name, &c.arguments}) check_text(*text, name);
    converted.push_back(message_of(m, converted.size()));
  }
  return ChatEncoder(impl_->text()).encode(converted, options_of(settings));
}

void Engine::check_chat() const {
  (void)ChatEncoder(impl_->text());
}

ChatReply Engine::chat(const std::vector<ChatMessage>& messages, const ChatSettings& settings,
                       const GenerateOptions& options, const OnChatDelta& on_delta) {
  if (!options.stop.empty())
    fail(ErrorCode::invalid_argument, "stop: stop strings do not go with chat(), whose answers have structure");
  const ChatEncoder encoder(impl_->text());
  GenerateOptions with_stops = options;
  if (!options.ignore_eos)
    with_stops.stop_ids.insert(with_stops.stop_ids.end(), encoder.stop_ids().begin(), encoder.stop_ids().end());
  if (with_stops.constraint) {
    with_stops.constraint->chat = true;
    with_stops.constraint->thinking = settings.thinking;
    with_stops.constraint->calls = with_stops.constraint->calls || !settings.tools_json.empty();
  }
  AnswerReader reader(impl_->text(), encoder.format(), settings.thinking);
  ChatReply reply;
  const auto take = [&](const AnswerDelta& d) {
    reply.reasoning += d.reasoning;
    reply.content += d.content;
    for (const ToolCall& c : d.calls) reply.calls.push_back({c.id, c.name, c.arguments});
    if (on_delta && !(d.reasoning.empty() && d.content.empty())) on_delta(d.reasoning, d.content);
  };
  reply.generation =
      generate(chat_prompt(messages, settings), with_stops,
               [&](const std::string&, const std::vector<int32_t>& tokens) { take(reader.feed(tokens)); });
  take(reader.finish());
  return reply;
}

ChatReply Engine::read_answer(const Generation& answer, bool thinking) const {
  AnswerReader reader(impl_->text(), ChatEncoder(impl_->text()).format(), thinking);
  AnswerDelta all = reader.feed(answer.tokens);
  all.append(reader.finish());
  ChatReply reply{.reasoning = all.reasoning, .content = all.content, .calls = {}, .generation = {}};
  for (const ToolCall& c : all.calls) reply.calls.push_back({c.id, c.name, c.arguments});
  return reply;
}

}  // namespace kdelta
