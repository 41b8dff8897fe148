// A conversation as structure, and its prompt as token ids. Structure comes from here alone: every piece of text is
// encoded by itself as ordinary text, so nothing that a user, a tool or a model wrote can become a control token or
// merge with one.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kdelta/io/json.h"
#include "kdelta/io/tokenizer.h"

namespace kdelta {

enum class Role : uint8_t { system, user, assistant, tool };

struct ToolCall {
  std::string id;  // opaque, made by the server; ties a result to its call. May be empty
  std::string name;
  std::string arguments;  // text of a JSON object; blank: no arguments
  bool operator==(const ToolCall&) const = default;
};

struct Message {
  Role role = Role::user;
  std::string name;  // of the speaker; of a tool result: the tool. May be empty
  std::string content;
  std::string reasoning;        // assistant
  std::vector<ToolCall> calls;  // assistant
  std::string call_id;          // tool result: ToolCall::id of the call it answers. May be empty
  Json tools;  // system: an array of tools that become available here (then content is not used), or null
};

enum class ToolChoice : uint8_t { automatic, none, required };
enum class ResponseFormat : uint8_t { text, json_object, json_schema };

struct ChatOptions {
  Json tools;            // an array of JSON schemas as in the OpenAI API; null or empty: none
  bool thinking = true;  // K3: whether answers have a thinking part
  std::string effort;  // K3: "low", "medium", "high", "max"; empty: nothing is said. The vendor's own default is "max"
  ToolChoice tool_choice = ToolChoice::automatic;
  ResponseFormat response_format = ResponseFormat::text;
  Json response_schema;           // of ResponseFormat::json_schema
  bool generation_prompt = true;  // end with the opening of the assistant's next message
};

enum class ChatFormat : uint8_t {
  xtml,  // Kimi K3: tags of <|open|>, <|close|> and <|sep|>
  k2,    // Kimi K2 and Kimi-Linear: <|im_user|> ... <|im_middle|> ... <|im_end|>
};

class ChatEncoder {
 public:
  // `tokenizer` must outlive this. The format is the one whose special tokens it has; throws Error(unsupported) when it
  // has neither's.
  explicit ChatEncoder(const Tokenizer& tokenizer);

  ChatFormat format() const { return format_; }
  // The ids that end an answer: the format's own and [EOS].
  const std::vector<int32_t>& stop_ids() const { return stop_ids_; }

  // Throws Error(invalid_argument) naming the message and the field: tools that are no array, an effort that is none,
  // arguments that are JSON but no object, a tool result whose tool nobody names, json_schema without a schema;
  // Error(unsupported) for what the format cannot say. xtml: arguments that parse_json refuses (no JSON, a key twice)
  // go out as they are, in a json element. Tool results are put in the order of their calls when each has a call's id;
  // otherwise they stay in place and take their tool's name by position. k2: calls without an id are called
  // functions.NAME:INDEX, counted through the conversation. Reasoning, thinking, tool_choice and response_format leave
  // no trace in the prompt.
  std::vector<int32_t> encode(std::span<const Message> messages, const ChatOptions& options) const;

 private:
  const Tokenizer* tokenizer_;
  ChatFormat format_ = ChatFormat::xtml;
  std::vector<int32_t> stop_ids_;
};

}  // namespace kdelta
