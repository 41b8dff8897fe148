// What openapi_schemas.cc says of the Anthropic Messages API.
#include "frontends/server/openapi.h"

namespace kdelta::server {

const char* const kMessageRequests = R"json(
"MessageContent": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"anyOf": [
  {"$ref": "#/components/schemas/TextBlock"},
  {"type": "object", "required": ["type", "thinking"], "properties": {
    "type": {"type": "string", "enum": ["thinking"]}, "thinking": {"type": "string"}, "signature": {"type": "string"},
    "cache_control": {"type": "object", "additionalProperties": true}}},
  {"type": "object", "required": ["type", "id", "name", "input"], "properties": {
    "type": {"type": "string", "enum": ["tool_use"]}, "id": {"type": "string"}, "name": {"type": "string"},
    "input": {"type": "object", "additionalProperties": true},
    "cache_control": {"type": "object", "additionalProperties": true}}},
  {"type": "object", "required": ["type", "tool_use_id"], "properties": {
    "type": {"type": "string", "enum": ["tool_result"]}, "tool_use_id": {"type": "string"},
    "content": {"anyOf": [{"type": "string"},
      {"type": "array", "items": {"$ref": "#/components/schemas/TextBlock"}}]},
    "is_error": {"type": "boolean"}, "cache_control": {"type": "object", "additionalProperties": true}}}]}}]},
"TextBlock": {"type": "object", "required": ["type", "text"], "properties": {
  "type": {"type": "string", "enum": ["text"]}, "text": {"type": "string"},
  "cache_control": {"type": "object", "additionalProperties": true}}},
"MessageConversation": {"type": "object", "required": ["messages"], "properties": {
  "model": {"type": "string", "description": "Name of the model; without it the only one", "example": ""},
  "messages": {"type": "array", "minItems": 1, "items": {"type": "object", "required": ["role", "content"],
      "properties": {"role": {"type": "string", "enum": ["user", "assistant", "system"]},
        "content": {"$ref": "#/components/schemas/MessageContent"}}},
    "description": "The last one is not the assistant's", "example": [{"role": "user", "content": "Hi"}]},
  "system": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"$ref": "#/components/schemas/TextBlock"}}],
    "description": "In front of the messages", "example": "Be brief."},
  "tools": {"type": "array", "items": {"type": "object", "required": ["name", "input_schema"], "properties": {
      "type": {"type": "string", "enum": ["custom"]}, "name": {"type": "string"}, "description": {"type": "string"},
      "input_schema": {"type": "object", "additionalProperties": true}, "strict": {"type": "boolean"},
      "eager_input_streaming": {"type": "boolean"},
      "cache_control": {"type": "object", "additionalProperties": true}}},
    "description": "Functions that may be called", "example": [{"name": "f", "input_schema": {"type": "object"}}]},
  "tool_choice": {"type": "object", "required": ["type"], "properties": {
      "type": {"type": "string", "enum": ["auto", "any", "tool", "none"]}, "name": {"type": "string"},
      "disable_parallel_tool_use": {"type": "boolean"}},
    "description": "Whether there must be a call, and of what: a grammar sees to it", "example": {"type": "auto"}},
  "thinking": {"type": "object", "required": ["type"], "properties": {
      "type": {"type": "string", "enum": ["enabled", "adaptive", "disabled"]},
      "budget_tokens": {"type": "integer", "minimum": 1},
      "display": {"type": "string", "enum": ["summarized", "omitted"]}},
    "description": "Off unless it is asked for", "example": {"type": "disabled"}},
  "output_config": {"type": "object", "properties": {
      "effort": {"type": "string", "enum": ["low", "medium", "high", "max"]},
      "format": {"type": "object", "required": ["type", "schema"], "properties": {
        "type": {"type": "string", "enum": ["json_schema"]},
        "schema": {"type": "object", "additionalProperties": true}}}},
    "description": "How much to think, and the form of the text", "example": {"effort": "low"}},
  "cache_control": {"description": "Accepted, without effect: prompts that begin alike are found", "example": null}}},
"CountRequest": {"type": "object", "with": ["MessageConversation"], "required": ["messages"], "properties": {}},
"MessageRequest": {"type": "object", "with": ["MessageConversation"], "required": ["messages", "max_tokens"],
 "properties": {
  "max_tokens": {"type": "integer", "minimum": 1, "description": "Most tokens of the answer", "example": 2},
  "stop_sequences": {"type": "array", "items": {"type": "string", "minLength": 1},
    "description": "The text ends before the first of these", "example": ["\n\n"]},
  "temperature": {"type": "number", "minimum": 0, "maximum": 3.4028234663852886e38, "description": "0: greedy",
    "example": 0},
  "top_p": {"type": "number", "minimum": 0, "maximum": 1, "description": "1: off", "example": 0.9},
  "top_k": {"type": "integer", "minimum": -1, "maximum": 2147483647, "description": "0 or -1: off", "example": 5},
  "min_p": {"type": "number", "minimum": 0, "maximum": 1, "description": "0: off; beyond that API", "example": 0.1},
  "seed": {"type": "integer", "minimum": 0, "maximum": 9223372036854775807,
    "description": "The same seed, the same answer; beyond that API", "example": 3},
  "stream": {"type": "boolean", "description": "The events of that API", "example": false},
  "metadata": {"description": "Accepted, without effect", "example": {"user_id": "x"}},
  "service_tier": {"description": "Accepted, without effect", "example": "auto"}}})json";

const char* const kMessageReplies = R"json(
"MessageError": {"type": "object", "required": ["type", "error"], "properties": {
  "type": {"const": "error"},
  "error": {"type": "object", "required": ["type", "message"], "properties": {
    "type": {"type": "string"}, "message": {"type": "string"}}}}},
"Count": {"type": "object", "required": ["input_tokens"], "properties": {"input_tokens": {"type": "integer"}}},
"MessageReply": {"type": "object",
 "required": ["id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage"], "properties": {
  "id": {"type": "string"}, "type": {"const": "message"}, "role": {"const": "assistant"}, "model": {"type": "string"},
  "content": {"type": "array", "items": {"type": "object", "required": ["type"], "properties": {
    "type": {"enum": ["text", "thinking", "tool_use"]}}}},
  "stop_reason": {"enum": ["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]},
  "stop_sequence": {"type": ["string", "null"]},
  "usage": {"type": "object", "required": ["input_tokens", "output_tokens"], "properties": {
    "input_tokens": {"type": "integer", "description": "Without those that were found"},
    "cache_creation_input_tokens": {"type": "integer"}, "cache_read_input_tokens": {"type": "integer"},
    "output_tokens": {"type": "integer"}}}}})json";

}  // namespace kdelta::server
