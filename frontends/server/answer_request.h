// What a body asks for: prompts, limits and the form of the answer. A field that would change the answer is honoured or
// refused by its name.
#pragma once

#include <string>
#include <vector>

#include "frontends/server/field_names.h"
#include "kdelta/api/json.h"
#include "kdelta/api/request_fields.h"
#include "kdelta/api/service.h"

namespace kdelta::server {

struct AnswerRequest {
  std::string model;  // "" when the body names none
  // One answer for each prompt and each of `choices`; choice i of a prompt draws with seed + i.
  std::vector<std::vector<int32_t>> prompts;
  std::vector<std::string> echo;  // of each prompt, its text in front of the answer; or empty
  GenerateOptions options;
  int64_t choices = 1;
  bool chat = false, thinking = true;
  bool show_thinking = true;  // message: what is thought is told
  Json repeated;              // response: fields of the request that it repeats
  bool stream = false;
  bool usage = false, usage_always = false;  // of a stream: in a last event, in every one

  ServiceRequest task(size_t prompt, int64_t choice) const;
};

struct RequestLimits {
  int64_t choices = kMostChoices;  // n times prompts
  int64_t logprobs = 20;
};

// Each throws Error(invalid_argument) whose message names the field, some by the library's name for it: `names` has the
// caller's, for these and for what the engine refuses later.
AnswerRequest read_completion(const Engine& engine, const JsonReader& body, const GenerateOptions& defaults,
                              const RequestLimits& limits, FieldNames& names);
AnswerRequest read_chat(const Engine& engine, const JsonReader& body, const GenerateOptions& defaults,
                        const RequestLimits& limits, FieldNames& names);
// The prompt of a body that is a conversation and nothing else; its errors have the caller's names.
std::vector<int32_t> read_chat_prompt(const Engine& engine, const JsonReader& body);

// The Anthropic API's. `counts`: of its count_tokens, which asks for no answer.
AnswerRequest read_message(const Engine& engine, const JsonReader& body, const GenerateOptions& defaults,
                           FieldNames& names, bool counts = false);

// The OpenAI Responses API's.
AnswerRequest read_response(const Engine& engine, const JsonReader& body, const GenerateOptions& defaults,
                            FieldNames& names);

// The whole text of a body as an object of the request schema of that name (openapi.h), which has all its fields; the
// error's source is "request".
JsonReader read_body(const std::string& body, const std::string& schema);

}  // namespace kdelta::server
