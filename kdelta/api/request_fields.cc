#include "kdelta/api/request_fields.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "kdelta/api/messages.h"
#include "kdelta/core/check.h"

namespace kdelta {

std::vector<int32_t> token_ids(const JsonReader& body, const char* field, const std::vector<int64_t>& ids) {
  std::vector<int32_t> out;
  out.reserve(ids.size());
  for (const int64_t id : ids) {
    if (id < 0 || id > INT32_MAX) body.refuse(field, "token ids");
    out.push_back(static_cast<int32_t>(id));
  }
  return out;
}

namespace {

template <class T, class Out>
void read_if(const JsonReader& body, const char* field, Out& out) {
  if (const auto value = body.find<T>(field)) out = static_cast<Out>(*value);
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

// Two names of one limit: of a body that sets both the smaller one counts.
void read_max_tokens(const JsonReader& body, int64_t& out) {
  const auto old = body.find<int64_t>("max_tokens"), now = body.find<int64_t>("max_completion_tokens");
  if (old || now) out = std::min(old.value_or(INT64_MAX), now.value_or(INT64_MAX));
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

void check_tools(const JsonReader& body) {
  for (const JsonReader& tool : body.get<std::vector<JsonReader>>("tools")) {
    if (tool.get<std::string>("type") != "function") tool.refuse("type", "function");
    const auto function = tool.get<JsonReader>("function");
    (void)read_function_name(function);
    (void)function.find<std::string>("description");
    const auto parameters = function.kind("parameters").value_or(Json::Kind::null);
    if (parameters != Json::Kind::null && parameters != Json::Kind::object)
      function.refuse("parameters", "a JSON Schema of an object");
  }
}

}  // namespace

GenerateOptions read_sampling(const JsonReader& body, GenerateOptions o) {
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
    for (const int32_t id : token_ids(body, "stop_token_ids", *ids)) o.stop_ids.push_back(id);
  if (body.kind("stop") == Json::Kind::string)
    o.stop = {body.get<std::string>("stop")};
  else if (const auto stop = body.find<std::vector<std::string>>("stop"))
    o.stop = *stop;
  read_constraint(body, o);
  check_options(o);
  return o;
}

std::string read_function_name(const JsonReader& function) {
  constexpr size_t kMost = 128;
  auto name = function.get<std::string>("name");
  const bool odd = std::ranges::any_of(name, [](unsigned char c) { return c < ' ' || c == 127; });
  if (name.empty() || name.size() > kMost || odd)
    function.refuse("name", str("1 to ", kMost, " bytes without control characters"));
  return name;
}

void tell_format(const GenerateOptions& options, ChatSettings& settings) {
  if (!options.constraint || settings.must_call) return;
  if (options.constraint->kind == Constraint::Kind::json_object) settings.answer_format = "json_object";
  if (options.constraint->kind == Constraint::Kind::json_schema) {
    settings.answer_format = "json_schema";
    settings.schema_json = options.constraint->text;
  }
}

ConversationFields read_conversation(const JsonReader& body) {
  ConversationFields out;
  for (const JsonReader& m : body.get<std::vector<JsonReader>>("messages")) {
    out.messages.push_back(read_message(m));
    read_nulls(m);
  }
  if (out.messages.empty()) body.refuse("messages", "at least one message");
  out.settings.thinking = body.find<bool>("thinking").value_or(true);
  out.settings.effort = body.find<std::string>("reasoning_effort").value_or("");
  if (const Json* tools = body.raw("tools"); tools != nullptr && !tools->is_null()) {
    check_tools(body);
    out.settings.tools_json = json_text(*tools);
  }
  check_options(out.settings);
  return out;
}

void read_nulls(const JsonReader& object) {
  for (const std::string& field : object.keys())
    if (object.kind(field) == Json::Kind::null) (void)object.raw(field);
}

void refuse_unread(const JsonReader& root) {
  if (const auto unread = root.unread(); !unread.empty())
    fail(ErrorCode::invalid_argument, root.source(), ": ", unread.front(), ": not supported in a request");
}

}  // namespace kdelta
