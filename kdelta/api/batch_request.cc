#include "kdelta/api/batch_request.h"

#include <charconv>
#include <cmath>
#include <limits>

#include "kdelta/api/messages.h"
#include "kdelta/core/check.h"

namespace kdelta {
namespace {

template <class T, class Out>
void read_if(const JsonReader& body, const char* field, Out& out) {
  if (const auto value = body.find<T>(field)) out = static_cast<Out>(*value);
}

int32_t token_of(const JsonReader& body, const char* field, int64_t id) {
  if (id < 0 || id > INT32_MAX) body.refuse(field, "token ids");
  return static_cast<int32_t>(id);
}

// {"ID": BIAS}, with ids as text, as JSON wants its names.
void read_logit_bias(const JsonReader& body, GenerateOptions& o) {
  const Json* all = body.raw("logit_bias");
  if (all == nullptr || all->is_null()) return;
  if (all->kind() != Json::Kind::object) body.refuse("logit_bias", "an object of token ids and biases");
  o.logit_bias.clear();
  for (const JsonMember& m : all->object()) {
    int32_t id = -1;
    const char* end = m.key.data() + m.key.size();
    const auto read = std::from_chars(m.key.data(), end, id);
    const bool number = m.value.kind() == Json::Kind::integer || m.value.kind() == Json::Kind::real;
    if (read.ec != std::errc() || read.ptr != end || id < 0 || !number ||
        std::abs(m.value.number()) > std::numeric_limits<float>::max())
      fail(ErrorCode::invalid_argument, body.source(), ": ", body.path_of("logit_bias"), ": ", printable(m.key), ": ",
           describe(m.value), ", expected a token id and a number");
    if (!o.logit_bias.emplace(id, static_cast<float>(m.value.number())).second)
      fail(ErrorCode::invalid_argument, body.source(), ": ", body.path_of("logit_bias"), ": token ", id, " twice");
  }
}

// Two names of one limit, the first of which chats call deprecated: a body that sets both means one number.
void read_max_tokens(const JsonReader& body, int64_t& out) {
  const auto old = body.find<int64_t>("max_tokens"), now = body.find<int64_t>("max_completion_tokens");
  if (old && now && *old != *now) body.refuse("max_completion_tokens", str("max_tokens, ", *old, ", or one of both"));
  if (old || now) out = now.value_or(old.value_or(0));
}

// response_format of the OpenAI API; structured_outputs of vLLM for the rest.
void read_constraint(const JsonReader& body, GenerateOptions& o) {
  using Kind = Constraint::Kind;
  const auto set = [&](Kind kind, std::string text) {
    if (o.constraint) body.refuse("structured_outputs", "one constraint");
    o.constraint = Constraint{.kind = kind, .text = std::move(text)};
  };
  if (const auto format = body.find<JsonReader>("response_format")) {
    o.constraint.reset();
    const auto type = format->get<std::string>("type");
    if (type == "json_schema") {
      const auto schema = format->get<JsonReader>("json_schema");
      (void)schema.find<std::string>("name"), (void)schema.find<std::string>("description");
      if (!schema.find<bool>("strict").value_or(true)) schema.refuse("strict", "true");
      if (schema.kind("schema") != Json::Kind::object) schema.refuse("schema", "a JSON Schema");
      set(Kind::json_schema, json_text(*schema.raw("schema")));
    } else if (type == "json_object") {
      set(Kind::json_object, "");
    } else if (type != "text") {
      format->refuse("type", "text, json_object or json_schema");
    }
  }
  if (const auto outputs = body.find<JsonReader>("structured_outputs")) {
    if (!body.kind("response_format")) o.constraint.reset();
    if (const Json* schema = outputs->raw("json"))
      set(Kind::json_schema, schema->kind() == Json::Kind::string ? schema->string() : json_text(*schema));
    if (const auto regex = outputs->find<std::string>("regex")) set(Kind::regex, *regex);
    if (const auto grammar = outputs->find<std::string>("grammar")) set(Kind::grammar, *grammar);
    if (outputs->find<bool>("json_object").value_or(false)) set(Kind::json_object, "");
    if (const auto choices = outputs->find<std::vector<std::string>>("choice")) {
      set(Kind::choice, "");
      o.constraint->choices = *choices;
    }
  }
}

GenerateOptions options_of(const JsonReader& body, GenerateOptions o) {
  read_max_tokens(body, o.max_tokens);
  read_if<int64_t>(body, "min_tokens", o.min_tokens);
  read_if<double>(body, "temperature", o.temperature);
  read_if<double>(body, "top_p", o.top_p);
  read_if<double>(body, "min_p", o.min_p);
  read_if<double>(body, "repetition_penalty", o.repetition_penalty);
  read_if<double>(body, "presence_penalty", o.presence_penalty);
  read_if<double>(body, "frequency_penalty", o.frequency_penalty);
  read_logit_bias(body, o);
  if (const auto k = body.find_in("top_k", -1, INT32_MAX)) o.top_k = static_cast<int32_t>(*k);
  if (const auto seed = body.find_in("seed", 0, INT64_MAX)) o.seed = static_cast<uint64_t>(*seed);
  read_if<bool>(body, "ignore_eos", o.ignore_eos);
  if (const auto ids = body.find<std::vector<int64_t>>("stop_token_ids"))
    for (const int64_t id : *ids) o.stop_ids.push_back(token_of(body, "stop_token_ids", id));
  if (body.kind("stop") == Json::Kind::string)
    o.stop = {body.get<std::string>("stop")};
  else if (const auto stop = body.find<std::vector<std::string>>("stop"))
    o.stop = *stop;
  read_constraint(body, o);
  check_options(o);
  return o;
}

constexpr int64_t kMostChoices = 128;

int64_t read_choices(const JsonReader& body) {
  const int64_t n = body.find_in("n", 1, kMostChoices).value_or(1);
  if (body.find<int64_t>("best_of").value_or(n) != n) body.refuse("best_of", str("n, ", n, ": all are in the answer"));
  return n;
}

// What the answer would be without them anyway.
void read_values_that_are_off(const JsonReader& body) {
  constexpr const char* kNoLogprobs = "null: answers of a batch carry no log-probabilities";
  if (body.find<int64_t>("top_logprobs").value_or(0) != 0) body.refuse("top_logprobs", kNoLogprobs);
  for (const char* field : {"stream", "echo"})
    if (body.find<bool>(field).value_or(false)) body.refuse(field, "false");
  // Of a completion 0 asks for the chosen token's.
  if (body.kind("logprobs").value_or(Json::Kind::null) == Json::Kind::integer) body.refuse("logprobs", kNoLogprobs);
  if (body.find<bool>("logprobs").value_or(false)) body.refuse("logprobs", kNoLogprobs);
  if (!body.find<std::string>("suffix").value_or("").empty()) body.refuse("suffix", "an empty string");
  for (const char* field : {"user", "metadata", "store", "model", "service_tier", "safety_identifier",
                            "prompt_cache_key", "prompt_cache_retention", "stream_options"})
    (void)body.raw(field);
}

void read_nulls(const JsonReader& object) {
  for (const std::string& field : object.keys())
    if (object.kind(field) == Json::Kind::null) (void)object.raw(field);
}

std::vector<int32_t> chat_prompt_of(const Engine& engine, const JsonReader& body, BatchRequest& r) {
  std::vector<ChatMessage> messages;
  for (const JsonReader& m : body.get<std::vector<JsonReader>>("messages")) {
    messages.push_back(read_message(m));
    read_nulls(m);
  }
  if (messages.empty()) body.refuse("messages", "at least one message");
  if (!r.task.options.stop.empty())
    body.refuse("stop", "null in a chat, whose answer has parts that a string would cut through");
  r.thinking = body.find<bool>("thinking").value_or(true);
  ChatSettings settings{
      .thinking = r.thinking, .effort = body.find<std::string>("reasoning_effort").value_or(""), .tools_json = {}};
  if (const Json* tools = body.raw("tools"); tools != nullptr && !tools->is_null())
    settings.tools_json = json_text(*tools);
  const auto choice = body.find<std::string>("tool_choice").value_or("auto");
  if (choice != "auto" && (choice != "none" || !settings.tools_json.empty())) body.refuse("tool_choice", "auto");
  if (!body.find<bool>("parallel_tool_calls").value_or(true)) body.refuse("parallel_tool_calls", "true");
  check_options(settings);
  if (auto& constraint = r.task.options.constraint) {
    constraint->chat = true;
    constraint->thinking = r.thinking;
    constraint->calls = !settings.tools_json.empty() && choice == "auto";
  }
  return engine.chat_prompt(messages, settings);
}

std::vector<int32_t> prompt_of(const Engine& engine, const JsonReader& body) {
  if (body.kind("prompt") == Json::Kind::string) return engine.tokenize(body.get<std::string>("prompt"));
  std::vector<int32_t> ids;
  for (const int64_t id : body.get<std::vector<int64_t>>("prompt")) ids.push_back(token_of(body, "prompt", id));
  return ids;
}

// Each endpoint has the input of its own; the other's is a wrong or missing url.
void check_url(const JsonReader& line, const JsonReader& body, bool chat) {
  const char *wanted = chat ? "messages" : "prompt", *other = chat ? "prompt" : "messages";
  const auto given = [&](const char* field) { return body.kind(field).value_or(Json::Kind::null) != Json::Kind::null; };
  if (given(wanted) || !given(other)) return;
  const char* fitting = chat ? "/v1/completions" : "/v1/chat/completions";
  const std::string expected = str(fitting, ", as the body has ", other);
  if (line.kind("url").value_or(Json::Kind::null) != Json::Kind::null) line.refuse("url", expected);
  fail(ErrorCode::invalid_argument, line.source(), ": url: missing, expected ", expected);
}

}  // namespace

BatchRequest read_request(const Engine& engine, const JsonReader& line, const GenerateOptions& defaults) {
  BatchRequest r;
  (void)line.find<std::string>("custom_id");
  if (line.find<std::string>("method").value_or("POST") != "POST") line.refuse("method", "POST");
  const auto url = line.find<std::string>("url").value_or("/v1/completions");
  if (url != "/v1/completions" && url != "/v1/chat/completions")
    line.refuse("url", "/v1/completions or /v1/chat/completions");
  r.chat = url == "/v1/chat/completions";
  const JsonReader body = line.find<JsonReader>("body").value_or(line);
  check_url(line, body, r.chat);
  r.task.options = options_of(body, defaults);
  r.choices = read_choices(body);
  read_values_that_are_off(body);
  r.task.prompt = r.chat ? chat_prompt_of(engine, body, r) : prompt_of(engine, body);
  read_nulls(body);
  read_nulls(line);
  if (const auto unread = line.unread(); !unread.empty())
    fail(ErrorCode::invalid_argument, line.source(), ": ", unread.front(), ": not supported in a request");
  return r;
}

}  // namespace kdelta
