// The schemas of requests and replies, as JSON. A request's object knows the properties that are named and no others,
// unless it says additionalProperties; "with" adds the properties of another schema.
#include "frontends/server/openapi.h"

namespace kdelta::server {
namespace {

// Of completions and chats.
constexpr const char* kSampling = R"json(
"Sampling": {"type": "object", "properties": {
  "model": {"type": "string", "description": "Name of the model; without it the only one", "example": ""},
  "max_tokens": {"type": "integer", "minimum": 1, "description": "Most tokens of the answer", "example": 2},
  "max_completion_tokens": {"type": "integer", "minimum": 1, "description": "The same; of both the smaller one counts",
    "example": 2},
  "min_tokens": {"type": "integer", "minimum": 0, "description": "No end before that many tokens", "example": 1},
  "temperature": {"type": "number", "minimum": 0, "maximum": 3.4028234663852886e38, "description": "0: greedy",
    "example": 0},
  "top_p": {"type": "number", "minimum": 0, "maximum": 1, "description": "1: off", "example": 0.9},
  "top_k": {"type": "integer", "minimum": -1, "maximum": 2147483647, "description": "0 or -1: off", "example": 5},
  "min_p": {"type": "number", "minimum": 0, "maximum": 1, "description": "0: off", "example": 0.1},
  "repetition_penalty": {"type": "number", "exclusiveMinimum": 0, "maximum": 3.4028234663852886e38,
    "description": "1: off", "example": 1.1},
  "presence_penalty": {"type": "number", "minimum": -3.4028234663852886e38, "maximum": 3.4028234663852886e38,
    "description": "0: off", "example": 0.5},
  "frequency_penalty": {"type": "number", "minimum": -3.4028234663852886e38, "maximum": 3.4028234663852886e38,
    "description": "0: off", "example": 0.5},
  "logit_bias": {"type": "object", "description": "Token ids, as text, and what is added to their logits",
    "propertyNames": {"pattern": "^(0|[1-9][0-9]{0,9})$"}, "additionalProperties": {"type": "number"},
    "example": {"5": -1.5}},
  "seed": {"type": "integer", "minimum": 0, "maximum": 9223372036854775807,
    "description": "The same seed, the same answer", "example": 3},
  "ignore_eos": {"type": "boolean", "description": "Go on behind end markers", "example": true},
  "stop": {"anyOf": [{"type": "string", "minLength": 1},
      {"type": "array", "items": {"type": "string", "minLength": 1}}],
    "description": "The answer ends before the first of these", "example": ["\n\n"]},
  "stop_token_ids": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 2147483647},
    "description": "Tokens that end the answer", "example": [7]},
  "n": {"type": "integer", "minimum": 1, "maximum": 128, "description": "Answers to each prompt", "example": 1},
  "stream": {"type": "boolean", "description": "Pieces of the answer as they come, as server-sent events",
    "example": false},
  "stream_options": {"type": "object", "description": "Of a stream alone", "properties": {
      "include_usage": {"type": "boolean", "description": "Token counts in a last event", "example": true},
      "continuous_usage_stats": {"type": "boolean", "description": "Token counts in every event", "example": true},
      "include_obfuscation": {"type": "boolean", "description": "Accepted, without effect", "example": false}},
    "example": null},
  "response_format": {"type": "object", "required": ["type"], "properties": {
      "type": {"type": "string", "enum": ["text", "json_object", "json_schema"], "example": "text"},
      "json_schema": {"type": "object", "required": ["schema"], "properties": {
        "name": {"type": "string", "example": "answer"},
        "description": {"type": "string", "example": "what it is for"},
        "strict": {"type": "boolean", "enum": [true], "example": true},
        "schema": {"type": "object", "additionalProperties": true, "description": "A JSON Schema",
          "example": {"type": "object"}}}}},
    "description": "The form of the answer, which it then has for certain", "example": {"type": "text"}},
  "structured_outputs": {"type": "object", "properties": {
      "json": {"anyOf": [{"type": "object", "additionalProperties": true}, {"type": "string"}],
        "description": "A JSON Schema, or its text", "example": {"type": "object"}},
      "regex": {"type": "string", "description": "Matched by the whole answer", "example": "[a-c]{2}"},
      "grammar": {"type": "string", "description": "In GBNF", "example": "root ::= \"yes\""},
      "json_object": {"type": "boolean", "example": true},
      "choice": {"type": "array", "items": {"type": "string"}, "minItems": 1, "example": ["yes", "no"]}},
    "maxProperties": 1, "description": "One other form of the answer", "example": {"choice": ["yes", "no"]}},
  "user": {"description": "Accepted, without effect", "example": "somebody"},
  "metadata": {"description": "Accepted, without effect", "example": {"a": "b"}},
  "store": {"description": "Accepted, without effect", "example": false},
  "service_tier": {"description": "Accepted, without effect", "example": "auto"},
  "safety_identifier": {"description": "Accepted, without effect", "example": "x"},
  "prompt_cache_key": {"description": "Accepted, without effect", "example": "x"},
  "prompt_cache_retention": {"description": "Accepted, without effect", "example": "24h"},
  "verbosity": {"description": "Accepted, without effect", "example": "low"}}})json";

constexpr const char* kRequests = R"json(
"Conversation": {"type": "object", "required": ["messages"], "properties": {
  "messages": {"type": "array", "minItems": 1, "items": {"$ref": "#/components/schemas/Message"},
    "example": [{"role": "user", "content": "Hi"}]},
  "thinking": {"type": "boolean", "description": "Whether the answer begins with a thinking part", "example": false},
  "reasoning_effort": {"type": "string", "enum": ["low", "medium", "high", "max"], "description": "How much to think",
    "example": "low"},
  "tools": {"type": "array", "items": {"type": "object", "additionalProperties": true},
    "description": "Functions that may be called, as the OpenAI API describes them",
    "example": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]}}},
"Message": {"type": "object", "required": ["role"], "properties": {
  "role": {"type": "string", "enum": ["system", "developer", "user", "assistant", "tool"], "example": "user"},
  "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object",
      "required": ["type", "text"], "properties": {"type": {"type": "string", "enum": ["text"], "example": "text"},
      "text": {"type": "string", "example": "Hi"}}}}], "example": "Hi"},
  "name": {"type": "string", "example": "Ann"},
  "reasoning": {"type": "string", "description": "Of an earlier answer", "example": "Hm."},
  "reasoning_content": {"type": "string", "description": "The same under its other name", "example": "Hm."},
  "tool_call_id": {"type": "string", "description": "The call that a tool's message answers", "example": "call_1"},
  "tool_calls": {"type": "array", "items": {"type": "object", "required": ["function"], "properties": {
      "id": {"type": "string", "example": "call_1"},
      "type": {"type": "string", "enum": ["function"], "example": "function"},
      "function": {"type": "object", "required": ["name", "arguments"], "properties": {
        "name": {"type": "string", "example": "f"},
        "arguments": {"type": "string", "description": "Text of a JSON object", "example": "{}"}}}}},
    "example": []}}},
"ChatRequest": {"type": "object", "with": ["Sampling", "Conversation"], "required": ["messages"], "properties": {
  "logprobs": {"type": "boolean", "description": "Log-probabilities of the answer's tokens", "example": true},
  "top_logprobs": {"type": "integer", "minimum": 0, "maximum": 20, "description": "And of the best at each place",
    "example": 0},
  "tool_choice": {"anyOf": [{"type": "string", "enum": ["auto", "none", "required"]},
      {"type": "object", "required": ["type"], "properties": {
        "type": {"type": "string", "enum": ["function", "allowed_tools"], "example": "function"},
        "function": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}},
        "allowed_tools": {"type": "object", "required": ["tools"], "properties": {
          "mode": {"type": "string", "enum": ["auto", "required"]},
          "tools": {"type": "array", "minItems": 1, "items": {"type": "object", "additionalProperties": true}}}}}}],
    "description": "Whether there must be a call, and of what: a grammar sees to it", "example": "auto"},
  "parallel_tool_calls": {"type": "boolean", "description": "false: at most one call", "example": false},
  "chat_template_kwargs": {"type": "object", "properties": {
      "thinking": {"type": "boolean", "example": false}, "enable_thinking": {"type": "boolean", "example": false}},
    "example": {"thinking": false}}}},
"CompletionRequest": {"type": "object", "with": ["Sampling"], "required": ["prompt"], "properties": {
  "prompt": {"anyOf": [{"type": "string", "minLength": 1},
      {"type": "array", "minItems": 1, "maxItems": 128, "items": {"type": "string", "minLength": 1}},
      {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}},
      {"type": "array", "minItems": 1, "maxItems": 128,
       "items": {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}}}],
    "description": "Text, or token ids, or several of either", "example": "In the beginning"},
  "logprobs": {"type": "integer", "minimum": 0, "maximum": 20,
    "description": "Log-probabilities of the answer's tokens and of that many best ones at each place", "example": 1},
  "echo": {"type": "boolean", "description": "The prompt in front of the answer", "example": true},
  "suffix": {"type": "string", "maxLength": 0, "example": ""},
  "best_of": {"type": "integer", "minimum": 1, "description": "n", "example": 1}}},
"TokenizeRequest": {"anyOf": [{"$ref": "#/components/schemas/TextToTokenize"},
  {"$ref": "#/components/schemas/MessagesToTokenize"}]},
"TextToTokenize": {"type": "object", "required": ["prompt"], "properties": {
  "model": {"type": "string", "example": ""},
  "prompt": {"type": "string", "example": "In the beginning"},
  "parse_special": {"type": "boolean", "description": "Names of special tokens in the prompt become these tokens",
    "example": false},
  "with_pieces": {"type": "boolean", "description": "The text of each token as well", "example": true}}},
"MessagesToTokenize": {"type": "object", "with": ["Conversation"], "required": ["messages"], "properties": {
  "model": {"type": "string", "example": ""},
  "with_pieces": {"type": "boolean", "description": "The text of each token as well", "example": true}}},
"DetokenizeRequest": {"type": "object", "required": ["tokens"], "properties": {
  "model": {"type": "string", "example": ""},
  "tokens": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 2147483647}, "example": [5, 6]},
  "special": {"type": "boolean", "description": "Show special tokens", "example": true}}},
"TemplateRequest": {"type": "object", "with": ["Conversation"], "required": ["messages"], "properties": {
  "model": {"type": "string", "example": ""}}})json";

constexpr const char* kReplies = R"json(
"Error": {"type": "object", "required": ["error"], "properties": {
  "error": {"type": "object", "required": ["message", "type", "param", "code"], "properties": {
    "message": {"type": "string"}, "type": {"type": "string"},
    "param": {"type": ["string", "null"], "description": "The field at fault"},
    "code": {"type": ["string", "null"]}}}}},
"Usage": {"type": "object", "required": ["prompt_tokens", "completion_tokens", "total_tokens"], "properties": {
  "prompt_tokens": {"type": "integer"}, "completion_tokens": {"type": "integer"}, "total_tokens": {"type": "integer"},
  "prompt_tokens_details": {"type": "object", "properties": {"cached_tokens": {"type": "integer"}}}}},
"Timings": {"type": "object", "properties": {
  "queued_ms": {"type": "number"}, "prompt_ms": {"type": "number"}, "predicted_ms": {"type": "number"},
  "predicted_per_second": {"type": "number"}}},
"Chat": {"type": "object", "required": ["id", "object", "created", "model", "choices", "usage"], "properties": {
  "id": {"type": "string"}, "object": {"const": "chat.completion"}, "created": {"type": "integer"},
  "model": {"type": "string"},
  "choices": {"type": "array", "items": {"type": "object",
    "required": ["index", "message", "logprobs", "finish_reason"], "properties": {
      "index": {"type": "integer"},
      "message": {"type": "object", "required": ["role", "content"], "properties": {
        "role": {"const": "assistant"}, "content": {"type": ["string", "null"]},
        "reasoning_content": {"type": "string"}, "tool_calls": {"type": "array", "items": {"type": "object"}}}},
      "logprobs": {"type": ["object", "null"]},
      "finish_reason": {"enum": ["stop", "length", "tool_calls"]}}}},
  "usage": {"$ref": "#/components/schemas/Usage"}, "timings": {"$ref": "#/components/schemas/Timings"}}},
"Completion": {"type": "object", "required": ["id", "object", "created", "model", "choices", "usage"], "properties": {
  "id": {"type": "string"}, "object": {"const": "text_completion"}, "created": {"type": "integer"},
  "model": {"type": "string"},
  "choices": {"type": "array", "items": {"type": "object", "required": ["index", "text", "logprobs", "finish_reason"],
    "properties": {
      "index": {"type": "integer"}, "text": {"type": "string"}, "logprobs": {"type": ["object", "null"]},
      "finish_reason": {"enum": ["stop", "length"]}}}},
  "usage": {"$ref": "#/components/schemas/Usage"}, "timings": {"$ref": "#/components/schemas/Timings"}}},
"Models": {"type": "object", "required": ["object", "data"], "properties": {
  "object": {"const": "list"},
  "data": {"type": "array", "items": {"$ref": "#/components/schemas/Model"}}}},
"Model": {"type": "object", "required": ["id", "object", "created", "owned_by"], "properties": {
  "id": {"type": "string"}, "object": {"const": "model"}, "created": {"type": "integer"},
  "owned_by": {"type": "string"}, "max_model_len": {"type": "integer"}}},
"Tokens": {"type": "object", "required": ["count", "max_model_len", "tokens"], "properties": {
  "count": {"type": "integer"}, "max_model_len": {"type": "integer"},
  "tokens": {"type": "array", "items": {"type": "integer"}},
  "pieces": {"type": "array", "items": {"type": "string"}}}},
"Text": {"type": "object", "required": ["prompt"], "properties": {
  "prompt": {"type": "string"}, "tokens": {"type": "array", "items": {"type": "integer"}}}},
"Health": {"type": "object", "required": ["status"], "properties": {
  "status": {"enum": ["ok", "loading", "draining"]}}},
"Version": {"type": "object", "required": ["version"], "properties": {"version": {"type": "string"}}},
"Cancelled": {"type": "object", "required": ["id", "cancelled"], "properties": {
  "id": {"type": "string"}, "cancelled": {"const": true}}},
"Document": {"type": "object", "required": ["openapi", "paths"]})json";

bool has(const Json& list, const Json& item) {
  for (const Json& one : list.array())
    if (one == item) return true;
  return false;
}

// Readers take null for nothing.
void or_null(Json& schema) {
  const Json* type = schema.find("type");
  if (type != nullptr) schema.set("type", Json::Array{*type, "null"});
  if (const Json* values = schema.find("enum")) {
    Json more = *values;
    more.array().push_back(nullptr);
    schema.set("enum", std::move(more));
  }
  if (const Json* forms = schema.find("anyOf")) {
    Json more = *forms;
    Json null = Json::Object{};
    null.set("type", "null");
    more.array().push_back(std::move(null));
    schema.set("anyOf", std::move(more));
  }
}

Json filled(const Json& schema);

Json filled_list(const Json& list) {
  Json out = Json::Array{};
  for (const Json& one : list.array()) out.array().push_back(filled(one));
  return out;
}

// What the short form above leaves out, at every depth.
Json filled(const Json& schema) {
  Json out = schema;
  if (const Json* items = schema.find("items")) out.set("items", filled(*items));
  if (const Json* forms = schema.find("anyOf")) out.set("anyOf", filled_list(*forms));
  const Json* properties = schema.find("properties");
  if (properties == nullptr) return out;
  const Json* required = schema.find("required");
  Json all = Json::Object{};
  for (const JsonMember& m : properties->object()) {
    Json one = filled(m.value);
    if (required == nullptr || !has(*required, m.key)) or_null(one);
    all.set(m.key, std::move(one));
  }
  out.set("properties", std::move(all));
  if (schema.find("additionalProperties") == nullptr) out.set("additionalProperties", false);
  return out;
}

Json with_others(const Json& schema, const Json& all) {
  const Json* others = schema.find("with");
  if (others == nullptr) return schema;
  Json properties = *schema.find("properties");
  for (const Json& name : others->array())
    for (const JsonMember& m : all.find(name.string())->find("properties")->object()) properties.set(m.key, m.value);
  Json out = Json::Object{};
  for (const JsonMember& m : schema.object())
    if (m.key != "with") out.set(m.key, m.value);
  out.set("properties", std::move(properties));
  return out;
}

}  // namespace

const Json& request_schemas() {
  static const Json all = [] {
    const Json given = parse_json(
        std::string("{") + kSampling + "," + kRequests + "," + kMessageRequests + "," + kResponseRequests + "}",
        {.name = "request schemas"});
    Json out = Json::Object{};
    for (const JsonMember& m : given.object()) out.set(m.key, filled(with_others(m.value, given)));
    return out;
  }();
  return all;
}

const Json& reply_schemas() {
  static const Json all = parse_json(std::string("{") + kReplies + "," + kMessageReplies + "," + kResponseReplies + "}",
                                     {.name = "reply schemas"});
  return all;
}

}  // namespace kdelta::server
