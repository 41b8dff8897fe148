// What openapi_schemas.cc says of the OpenAI Responses API.
#include "frontends/server/openapi.h"

namespace kdelta::server {

const char* const kResponseRequests = R"json(
"InputText": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object", "required": ["type"],
  "properties": {
    "type": {"type": "string", "enum": ["input_text", "output_text", "refusal", "reasoning_text", "summary_text"]},
    "text": {"type": "string"}, "refusal": {"type": "string"}, "annotations": {"type": "array", "items": {}},
    "logprobs": {"type": "array", "items": {}}}}}]},
"InputItem": {"type": "object", "properties": {
  "type": {"type": "string", "enum": ["message", "reasoning", "function_call", "function_call_output"]},
  "id": {"type": "string"}, "status": {"type": "string"}, "phase": {"type": "string"},
  "role": {"type": "string", "enum": ["user", "assistant", "system", "developer"]},
  "content": {"$ref": "#/components/schemas/InputText"}, "summary": {"$ref": "#/components/schemas/InputText"},
  "encrypted_content": {"description": "null"}, "call_id": {"type": "string"}, "name": {"type": "string"},
  "arguments": {"type": "string"}, "output": {"$ref": "#/components/schemas/InputText"}}},
"ResponseRequest": {"type": "object", "required": ["input"], "properties": {
  "model": {"type": "string", "description": "Name of the model; without it the only one", "example": ""},
  "input": {"anyOf": [{"type": "string"},
      {"type": "array", "minItems": 1, "items": {"$ref": "#/components/schemas/InputItem"}}],
    "description": "The whole conversation", "example": "Hi"},
  "instructions": {"type": "string", "description": "In front of the input", "example": "Be brief."},
  "max_output_tokens": {"type": "integer", "minimum": 1, "description": "Most tokens of the answer", "example": 2},
  "temperature": {"type": "number", "minimum": 0, "maximum": 3.4028234663852886e38, "description": "0: greedy",
    "example": 0},
  "top_p": {"type": "number", "minimum": 0, "maximum": 1, "description": "1: off", "example": 0.9},
  "top_k": {"type": "integer", "minimum": -1, "maximum": 2147483647, "description": "0 or -1: off; beyond that API",
    "example": 5},
  "min_p": {"type": "number", "minimum": 0, "maximum": 1, "description": "0: off; beyond that API", "example": 0.1},
  "seed": {"type": "integer", "minimum": 0, "maximum": 9223372036854775807,
    "description": "The same seed, the same answer; beyond that API", "example": 3},
  "tools": {"type": "array", "items": {"type": "object", "required": ["type", "name"], "properties": {
      "type": {"type": "string", "enum": ["function"]}, "name": {"type": "string"}, "description": {"type": "string"},
      "parameters": {"type": "object", "additionalProperties": true}, "strict": {"type": "boolean"}}},
    "description": "Functions that may be called",
    "example": [{"type": "function", "name": "f", "parameters": {"type": "object"}}]},
  "tool_choice": {"anyOf": [{"type": "string", "enum": ["auto", "none", "required"]},
      {"type": "object", "required": ["type"], "properties": {
        "type": {"type": "string", "enum": ["function", "allowed_tools"]}, "name": {"type": "string"},
        "mode": {"type": "string", "enum": ["auto", "required"]},
        "tools": {"type": "array", "minItems": 1, "items": {"type": "object", "required": ["type", "name"],
          "properties": {"type": {"type": "string", "enum": ["function"]}, "name": {"type": "string"}}}}}}],
    "description": "Whether there must be a call, and of what: a grammar sees to it", "example": "auto"},
  "parallel_tool_calls": {"type": "boolean", "description": "false: at most one call", "example": false},
  "text": {"type": "object", "properties": {
      "verbosity": {"type": "string"},
      "format": {"type": "object", "required": ["type"], "properties": {
        "type": {"type": "string", "enum": ["text", "json_object", "json_schema"]}, "name": {"type": "string"},
        "description": {"type": "string"}, "strict": {"type": "boolean", "enum": [true]},
        "schema": {"type": "object", "additionalProperties": true}}}},
    "description": "The form of the text, which it then has for certain", "example": {"format": {"type": "text"}}},
  "reasoning": {"type": "object", "properties": {
      "effort": {"type": "string", "enum": ["none", "low", "medium", "high", "max"]}, "summary": {"type": "string"},
      "generate_summary": {"type": "string"}},
    "description": "How much to think; what was thought comes whole", "example": {"effort": "low"}},
  "stream": {"type": "boolean", "description": "The events of that API", "example": false},
  "store": {"description": "Accepted: nothing is kept", "example": true},
  "previous_response_id": {"description": "null: nothing is kept", "example": null},
  "background": {"type": "boolean", "enum": [false], "example": false},
  "truncation": {"type": "string", "enum": ["disabled"], "example": "disabled"},
  "top_logprobs": {"type": "integer", "enum": [0], "example": 0},
  "include": {"type": "array", "items": {"type": "string", "enum": ["reasoning.encrypted_content"]},
    "description": "Accepted: what was thought comes in the open", "example": ["reasoning.encrypted_content"]},
  "stream_options": {"description": "Accepted, without effect", "example": {"include_obfuscation": false}},
  "metadata": {"description": "Repeated in the response", "example": {"a": "b"}},
  "user": {"description": "Repeated in the response", "example": "somebody"},
  "max_tool_calls": {"description": "Accepted, without effect", "example": 3},
  "service_tier": {"description": "Accepted, without effect", "example": "auto"},
  "safety_identifier": {"description": "Accepted, without effect", "example": "x"},
  "prompt_cache_key": {"description": "Accepted, without effect", "example": "x"},
  "prompt_cache_retention": {"description": "Accepted, without effect", "example": "24h"}}})json";

const char* const kResponseReplies = R"json(
"Response": {"type": "object", "required": ["id", "object", "created_at", "status", "model", "output", "usage", "error",
  "incomplete_details", "tools", "tool_choice", "parallel_tool_calls"], "properties": {
  "id": {"type": "string"}, "object": {"const": "response"}, "created_at": {"type": "integer"},
  "status": {"enum": ["completed", "incomplete"]}, "model": {"type": "string"}, "store": {"const": false},
  "output": {"type": "array", "items": {"type": "object", "required": ["id", "type", "status"], "properties": {
    "type": {"enum": ["message", "reasoning", "function_call"]},
    "status": {"enum": ["completed", "incomplete"]}}}},
  "incomplete_details": {"type": ["object", "null"]},
  "usage": {"type": "object", "required": ["input_tokens", "output_tokens", "total_tokens"], "properties": {
    "input_tokens": {"type": "integer"}, "output_tokens": {"type": "integer"}, "total_tokens": {"type": "integer"},
    "input_tokens_details": {"type": "object", "properties": {"cached_tokens": {"type": "integer"}}},
    "output_tokens_details": {"type": "object", "properties": {"reasoning_tokens": {"type": "integer"}}}}}}})json";

}  // namespace kdelta::server
