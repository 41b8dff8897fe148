// The body of the OpenAI Responses API, as a chat. Nothing is kept between requests.
#include <algorithm>
#include <utility>

#include "frontends/server/answer_format.h"
#include "frontends/server/tool_use.h"
#include "kdelta/api/request_fields.h"

namespace kdelta::server {
namespace {

using Readers = std::vector<JsonReader>;

// A string, or parts of one of these types.
std::string text_of(const JsonReader& from, const char* field, const std::vector<std::string>& types) {
  if (from.kind(field) == Json::Kind::string) return from.get<std::string>(field);
  std::string out;
  for (const JsonReader& part : from.find<Readers>(field).value_or(Readers{})) {
    const auto type = part.get<std::string>("type");
    if (std::find(types.begin(), types.end(), type) == types.end()) part.refuse("type", types.front());
    out += part.get<std::string>(type == "refusal" ? "refusal" : "text");
    (void)part.raw("annotations"), (void)part.raw("logprobs");
    read_nulls(part);
  }
  return out;
}

// Items to messages: what an assistant thought, said and called, one behind the other, is one message.
class Conversation {
 public:
  explicit Conversation(FieldNames& names) : names_(names) {}
  void add(const JsonReader& item) {
    const std::string type = item.find<std::string>("type").value_or("message");
    for (const char* field : {"id", "status", "phase"}) (void)item.raw(field);
    if (type == "message")
      message(item);
    else if (type == "reasoning")
      reasoning(item);
    else if (type == "function_call")
      call(item);
    else if (type == "function_call_output")
      say({.role = "tool",
           .content = text_of(item, "output", {"input_text"}),
           .call_id = item.get<std::string>("call_id")},
          item.path());
    else
      item.refuse("type", "message, reasoning, function_call or function_call_output");
    read_nulls(item);
  }
  void say(ChatMessage message, const std::string& path) {
    messages.push_back(std::move(message));
    names_.messages.push_back({path});
    answering_ = false;
  }

  std::vector<ChatMessage> messages;

 private:
  // The assistant's message that goes on, or a new one when `full` says that there is no place in it.
  template <class Full>
  ChatMessage& answer(const JsonReader& item, Full full) {
    if (!std::exchange(answering_, true) || full(messages.back())) {
      messages.push_back({.role = "assistant", .content = ""});
      names_.messages.push_back({item.path()});
    }
    return messages.back();
  }

  void message(const JsonReader& item) {
    const auto role = item.get<std::string>("role");
    if (role == "assistant") {
      std::string text = text_of(item, "content", {"output_text", "input_text", "refusal"});
      answer(item, [](const ChatMessage& m) { return !m.content.empty() || !m.calls.empty(); }).content =
          std::move(text);
    } else if (role == "user" || role == "system" || role == "developer") {
      say({.role = role == "user" ? "user" : "system", .content = text_of(item, "content", {"input_text"})},
          item.path());
    } else {
      item.refuse("role", "user, assistant, system or developer");
    }
  }
  void reasoning(const JsonReader& item) {
    if (item.kind("encrypted_content").value_or(Json::Kind::null) != Json::Kind::null)
      item.refuse("encrypted_content", "null: what was thought comes in the open");
    std::string text = text_of(item, "content", {"reasoning_text"});
    const std::string summary = text_of(item, "summary", {"summary_text"});
    answer(item, [](const ChatMessage& m) { return !m.content.empty() || !m.calls.empty(); }).reasoning +=
        text.empty() ? summary : text;
  }
  void call(const JsonReader& item) {
    answer(item, [](const ChatMessage&) { return false; })
        .calls.push_back(
            {item.get<std::string>("call_id"), read_function_name(item), item.get<std::string>("arguments")});
    names_.messages.back().arguments.push_back(item.path_of("arguments"));
  }

  FieldNames& names_;
  bool answering_ = false;
};

std::vector<ChatMessage> read_input(const JsonReader& body, FieldNames& names) {
  Conversation c(names);
  if (const auto text = body.find<std::string>("instructions"))
    c.say({.role = "system", .content = *text}, "instructions");
  if (body.kind("input") == Json::Kind::string) {
    c.say({.role = "user", .content = body.get<std::string>("input")}, "input");
  } else {
    const auto items = body.get<Readers>("input");
    if (items.empty()) body.refuse("input", "at least one item");
    for (const JsonReader& item : items) c.add(item);
  }
  return std::move(c.messages);
}

std::string function_name(const JsonReader& of) {
  if (of.get<std::string>("type") != "function") of.refuse("type", "function");
  return read_function_name(of);
}

void read_choice(const JsonReader& body, ToolUse& use) {
  if (body.kind("tool_choice") != Json::Kind::object) return read_mode(body, "tool_choice", use);
  const auto choice = body.get<JsonReader>("tool_choice");
  if (choice.get<std::string>("type") == "allowed_tools") {
    read_mode(choice, "mode", use);
    for (const JsonReader& tool : choice.get<Readers>("tools")) use.only.push_back(function_name(tool));
    if (use.only.empty()) choice.refuse("tools", "at least one function");
    return;
  }
  use.choice = ToolUse::Choice::required;
  use.only = {function_name(choice)};
  use.one = true;
}

ToolUse read_tools(const JsonReader& body, ChatSettings& settings, FieldNames& names) {
  ToolUse use;
  Json declared = Json::Array{};
  for (const JsonReader& tool : body.find<Readers>("tools").value_or(Readers{})) {
    const std::string name = function_name(tool);
    const Json* parameters = tool.raw("parameters");
    use.functions.push_back({.name = name,
                             .parameters = parameters == nullptr ? Json() : *parameters,
                             .strict = tool.find<bool>("strict")});
    names.tools.emplace_back(printable(name), tool.path_of("parameters"));
    declared.array().push_back(declaration(use.functions.back(), tool.find<std::string>("description").value_or("")));
    read_nulls(tool);
  }
  if (!declared.array().empty()) settings.tools_json = json_text(declared);
  read_choice(body, use);
  use.one = use.one || !body.find<bool>("parallel_tool_calls").value_or(true);
  return use;
}

void read_text(const JsonReader& body, GenerateOptions& options) {
  const auto text = body.find<JsonReader>("text");
  if (!text) return;
  (void)text->raw("verbosity");
  const auto format = text->find<JsonReader>("format");
  if (!format) return;
  const auto type = format->get<std::string>("type");
  if (type == "json_schema") {
    (void)format->raw("name"), (void)format->raw("description");
    if (!format->find<bool>("strict").value_or(true)) format->refuse("strict", "true");
    if (format->kind("schema") != Json::Kind::object) format->refuse("schema", "a JSON Schema");
    options.constraint = Constraint{.kind = Constraint::Kind::json_schema, .text = json_text(*format->raw("schema"))};
  } else if (type == "json_object") {
    options.constraint = Constraint{.kind = Constraint::Kind::json_object};
  } else if (type != "text") {
    format->refuse("type", "text, json_object or json_schema");
  }
  read_nulls(*format);
}

void read_reasoning(const JsonReader& body, ChatSettings& settings) {
  const auto reasoning = body.find<JsonReader>("reasoning");
  if (!reasoning) return;
  settings.effort = reasoning->find<std::string>("effort").value_or("");
  if (settings.effort == "none") settings.thinking = false, settings.effort.clear();
  (void)reasoning->raw("summary"), (void)reasoning->raw("generate_summary");  // all of it comes
}

// What would need a memory, or change an answer in a way that there is none for.
void refuse_others(const JsonReader& body) {
  const auto is_null = [&](const char* field) {
    const bool null = body.kind(field).value_or(Json::Kind::null) == Json::Kind::null;
    (void)body.raw(field);
    return null;
  };
  if (!is_null("previous_response_id"))
    body.refuse("previous_response_id", "null: no response is kept, the whole conversation is the input");
  if (body.find<bool>("background").value_or(false)) body.refuse("background", "false");
  if (body.find<std::string>("truncation").value_or("disabled") != "disabled") body.refuse("truncation", "disabled");
  if (body.find<int64_t>("top_logprobs").value_or(0) != 0) body.refuse("top_logprobs", "0");
  for (const std::string& what : body.find<std::vector<std::string>>("include").value_or(std::vector<std::string>{}))
    if (what != "reasoning.encrypted_content") body.refuse("include", "reasoning.encrypted_content");
  for (const char* field : {"store", "metadata", "user", "service_tier", "safety_identifier", "prompt_cache_key",
                            "prompt_cache_retention", "max_tool_calls", "stream_options"})
    (void)body.raw(field);
}

// What a response repeats of its request.
Json repeated(const JsonReader& body, const GenerateOptions& o) {
  Json out = Json::Object{};
  const auto repeat = [&](const char* field, Json absent) {
    const Json* given = body.raw(field);
    out.set(field, given == nullptr || given->is_null() ? std::move(absent) : *given);
  };
  repeat("instructions", {});
  repeat("max_output_tokens", {});
  repeat("metadata", Json::Object{});
  repeat("parallel_tool_calls", true);
  repeat("reasoning", Json::Object{{"effort", Json()}, {"summary", Json()}});
  repeat("temperature", plain_number(o.temperature));
  repeat("text", Json::Object{{"format", Json::Object{{"type", "text"}}}});
  repeat("tool_choice", "auto");
  repeat("tools", Json::Array{});
  repeat("top_p", plain_number(o.top_p));
  repeat("user", {});
  return out;
}

}  // namespace

AnswerRequest read_response(const Engine& engine, const JsonReader& body, const GenerateOptions& defaults,
                            FieldNames& names) {
  names.fields = {{"prompt", "input"},
                  {"tools", "tools"},
                  {"json_schema", "text.format.schema"},
                  {"max_tokens", "max_output_tokens"},
                  {"effort", "reasoning.effort"}};
  for (const char* same : {"temperature", "top_p", "top_k", "min_p"}) names.fields.emplace_back(same, same);
  AnswerRequest r;
  r.chat = true;
  r.model = body.find<std::string>("model").value_or("");
  GenerateOptions o = defaults;
  o.max_tokens = body.find_in("max_output_tokens", 1, INT64_MAX).value_or(kUntilFull);
  r.options = read_sampling(body, o);
  r.stream = body.find<bool>("stream").value_or(false);
  ChatSettings settings;
  const std::vector<ChatMessage> messages = read_input(body, names);
  read_reasoning(body, settings);
  r.thinking = settings.thinking;
  read_text(body, r.options);
  apply(read_tools(body, settings, names), settings, r.options);
  tell_format(r.options, settings);
  check_options(r.options);
  check_options(settings);
  refuse_others(body);
  r.repeated = repeated(body, r.options);
  read_nulls(body);
  refuse_unread(body);
  r.prompts.push_back(engine.chat_prompt(messages, settings));
  return r;
}

}  // namespace kdelta::server
