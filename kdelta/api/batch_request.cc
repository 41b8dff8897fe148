#include "kdelta/api/batch_request.h"

#include "kdelta/api/request_fields.h"
#include "kdelta/core/check.h"

namespace kdelta {
namespace {

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

std::vector<int32_t> chat_prompt_of(const Engine& engine, const JsonReader& body, BatchRequest& r) {
  if (!r.task.options.stop.empty())
    body.refuse("stop", "null in a chat, whose answer has parts that a string would cut through");
  ConversationFields fields = read_conversation(body);
  r.thinking = fields.settings.thinking;
  const auto choice = body.find<std::string>("tool_choice").value_or("auto");
  if (choice != "auto" && (choice != "none" || !fields.settings.tools_json.empty())) body.refuse("tool_choice", "auto");
  if (!body.find<bool>("parallel_tool_calls").value_or(true)) body.refuse("parallel_tool_calls", "true");
  if (auto& constraint = r.task.options.constraint) {
    constraint->chat = true;
    constraint->thinking = r.thinking;
    constraint->calls = !fields.settings.tools_json.empty() && choice == "auto";
  }
  tell_format(r.task.options, fields.settings);
  return engine.chat_prompt(fields.messages, fields.settings);
}

std::vector<int32_t> prompt_of(const Engine& engine, const JsonReader& body) {
  if (body.kind("prompt") == Json::Kind::string) return engine.tokenize(body.get<std::string>("prompt"));
  return token_ids(body, "prompt", body.get<std::vector<int64_t>>("prompt"));
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
  r.task.options = read_sampling(body, defaults);
  r.choices = read_choices(body);
  read_values_that_are_off(body);
  r.task.prompt = r.chat ? chat_prompt_of(engine, body, r) : prompt_of(engine, body);
  read_nulls(body);
  read_nulls(line);
  refuse_unread(line);
  return r;
}

}  // namespace kdelta
