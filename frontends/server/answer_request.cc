#include "frontends/server/answer_request.h"

#include "frontends/server/openapi.h"
#include "frontends/server/tool_use.h"
#include "kdelta/api/request_fields.h"

namespace kdelta::server {
namespace {

// What the OpenAI API gives a completion that names no limit; a chat goes on until it ends.
constexpr int64_t kCompletionTokens = 16;

// They are for the books of whoever asks and change no answer.
constexpr const char* kMeaningless[] = {"user",
                                        "metadata",
                                        "store",
                                        "service_tier",
                                        "safety_identifier",
                                        "prompt_cache_key",
                                        "verbosity",
                                        "prompt_cache_retention"};

void read_stream(const JsonReader& body, AnswerRequest& r) {
  r.stream = body.find<bool>("stream").value_or(false);
  const auto options = body.find<JsonReader>("stream_options");
  if (!options) return;
  if (!r.stream) body.refuse("stream_options", "null unless stream is true");
  r.usage = options->find<bool>("include_usage").value_or(false);
  r.usage_always = options->find<bool>("continuous_usage_stats").value_or(false);
  (void)options->raw("include_obfuscation");
  read_nulls(*options);
}

// What both kinds of request share.
AnswerRequest read_common(const JsonReader& body, const GenerateOptions& defaults, const RequestLimits& limits,
                          int64_t max_tokens) {
  AnswerRequest r;
  r.model = body.find<std::string>("model").value_or("");
  GenerateOptions o = defaults;
  o.max_tokens = max_tokens;
  r.options = read_sampling(body, o);
  r.choices = body.find_in("n", 1, limits.choices).value_or(1);
  read_stream(body, r);
  for (const char* field : kMeaningless) (void)body.raw(field);
  return r;
}

void check_count(const JsonReader& body, const AnswerRequest& r, const RequestLimits& limits) {
  if (std::ssize(r.prompts) * r.choices > limits.choices)
    body.refuse("n", "at most " + std::to_string(limits.choices) + " answers of one request");
}

// What the library has names of its own for, and the names that the OpenAI API has.
std::vector<std::pair<std::string, std::string>> openai_names(const JsonReader& body) {
  std::vector<std::pair<std::string, std::string>> names;
  for (const char* same : {"temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty",
                           "frequency_penalty", "logit_bias", "max_tokens", "min_tokens", "stop", "tools"})
    names.emplace_back(same, same);
  const auto given = [](const JsonReader& object, const char* field) {
    return object.kind(field).value_or(Json::Kind::null) != Json::Kind::null;
  };
  if (given(body, "max_completion_tokens") && !given(body, "max_tokens")) names[8].second = "max_completion_tokens";
  const bool outputs = body.kind("structured_outputs") == Json::Kind::object &&
                       given(body.get<JsonReader>("structured_outputs"), "json");
  names.emplace_back("json_schema", outputs ? "structured_outputs.json" : "response_format.json_schema.schema");
  for (const char* kind : {"regex", "choice", "grammar"})
    names.emplace_back(kind, "structured_outputs." + std::string(kind));
  names.emplace_back("stop_ids", "stop_token_ids");
  names.emplace_back("effort", "reasoning_effort");
  return names;
}

void name_messages(const ConversationFields& fields, FieldNames& names) {
  for (size_t i = 0; i < fields.messages.size(); ++i) {
    names.messages.push_back({"messages[" + std::to_string(i) + "]"});
    auto& [path, arguments] = names.messages.back();
    for (size_t j = 0; j < fields.messages[i].calls.size(); ++j)
      arguments.push_back(path + ".tool_calls[" + std::to_string(j) + "].function.arguments");
  }
}

bool is_array_of(const Json& value, Json::Kind kind) {
  if (value.kind() != Json::Kind::array || value.array().empty()) return false;
  for (const Json& item : value.array())
    if (item.kind() != kind) return false;
  return true;
}

// A string, strings, token ids, or lists of these.
void read_prompts(const Engine& engine, const JsonReader& body, AnswerRequest& r) {
  const Json* prompt = body.raw("prompt");
  constexpr const char* kForms = "a string, strings, token ids, or lists of token ids";
  if (prompt == nullptr) body.refuse("prompt", kForms);
  const auto ids_of = [&](const Json& list) {
    std::vector<int64_t> ids;
    for (const Json& id : list.array()) ids.push_back(id.integer());
    return token_ids(body, "prompt", ids);
  };
  if (prompt->kind() == Json::Kind::string) {
    r.prompts.push_back(engine.tokenize(prompt->string()));
  } else if (is_array_of(*prompt, Json::Kind::string)) {
    for (const Json& text : prompt->array()) r.prompts.push_back(engine.tokenize(text.string()));
  } else if (is_array_of(*prompt, Json::Kind::integer)) {
    r.prompts.push_back(ids_of(*prompt));
  } else if (is_array_of(*prompt, Json::Kind::array)) {
    for (const Json& list : prompt->array()) {
      if (!is_array_of(list, Json::Kind::integer)) body.refuse("prompt", kForms);
      r.prompts.push_back(ids_of(list));
    }
  } else {
    body.refuse("prompt", kForms);
  }
}

void read_thinking(const JsonReader& body, ChatSettings& settings) {
  if (settings.effort == "none") settings.thinking = false, settings.effort.clear();
  const auto kwargs = body.find<JsonReader>("chat_template_kwargs");
  if (!kwargs) return;
  for (const char* name : {"thinking", "enable_thinking"})
    if (const auto on = kwargs->find<bool>(name)) settings.thinking = *on;
}

}  // namespace

ServiceRequest AnswerRequest::task(size_t prompt, int64_t choice) const {
  ServiceRequest r{.task = {prompts[prompt], options}, .chat = chat, .thinking = thinking};
  r.task.options.seed += static_cast<uint64_t>(choice);
  return r;
}

AnswerRequest read_completion(const Engine& engine, const JsonReader& body, const GenerateOptions& defaults,
                              const RequestLimits& limits, FieldNames& names) {
  names.fields = openai_names(body);
  names.fields.emplace_back("prompt", "prompt");
  AnswerRequest r = read_common(body, defaults, limits, kCompletionTokens);
  if (const auto n = body.find_in("logprobs", 0, limits.logprobs)) r.options.logprobs = static_cast<int32_t>(*n);
  if (!body.find<std::string>("suffix").value_or("").empty()) body.refuse("suffix", "an empty string");
  if (const auto best = body.find<int64_t>("best_of"); best && *best != r.choices) body.refuse("best_of", "n");
  read_prompts(engine, body, r);
  check_count(body, r, limits);
  if (body.find<bool>("echo").value_or(false)) {
    if (r.options.logprobs >= 0) body.refuse("echo", "false together with logprobs");
    for (const auto& ids : r.prompts) r.echo.push_back(engine.detokenize(ids));
  }
  read_nulls(body);
  refuse_unread(body);
  return r;
}

AnswerRequest read_chat(const Engine& engine, const JsonReader& body, const GenerateOptions& defaults,
                        const RequestLimits& limits, FieldNames& names) {
  names.fields = openai_names(body);
  names.fields.emplace_back("prompt", "messages");
  AnswerRequest r = read_common(body, defaults, limits, kUntilFull);
  r.chat = true;
  const bool logprobs = body.find<bool>("logprobs").value_or(false);
  const auto top = body.find_in("top_logprobs", 0, limits.logprobs);
  if (top && *top > 0 && !logprobs) body.refuse("top_logprobs", "0 unless logprobs is true");
  if (logprobs) r.options.logprobs = static_cast<int32_t>(top.value_or(0));
  ConversationFields fields = read_conversation(body);
  name_messages(fields, names);
  read_thinking(body, fields.settings);
  read_chat_tools(body, fields.settings, r.options, names);
  check_options(fields.settings);
  r.thinking = fields.settings.thinking;
  tell_format(r.options, fields.settings);
  read_nulls(body);
  refuse_unread(body);
  r.prompts.push_back(engine.chat_prompt(fields.messages, fields.settings));
  check_count(body, r, limits);
  return r;
}

std::vector<int32_t> read_chat_prompt(const Engine& engine, const JsonReader& body) {
  FieldNames names{.fields = {{"effort", "reasoning_effort"}, {"tools", "tools"}}};
  return named(names, [&] {
    const ConversationFields c = read_conversation(body);
    name_messages(c, names);
    return engine.chat_prompt(c.messages, c.settings);
  });
}

JsonReader read_body(const std::string& body, const std::string& schema) {
  const JsonSource source{.name = "request", .code = ErrorCode::invalid_argument};
  Json root = parse_json(body, source, {.max_bytes = std::ssize(body)});
  refuse_undescribed(root, schema);
  return JsonReader(std::move(root), source);
}

}  // namespace kdelta::server
