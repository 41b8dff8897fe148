// Fields of requests in the form of the OpenAI API, as batches and servers read them. A field that would change the
// answer is honoured or refused by its name, never passed over: whoever has read all it knows calls refuse_unread().
#pragma once

#include "kdelta/api/engine.h"
#include "kdelta/api/json.h"

namespace kdelta {

// Limits, sampling, penalties, biases, stop strings and ids, constraints; `defaults` where the body says nothing.
GenerateOptions read_sampling(const JsonReader& body, GenerateOptions defaults);

struct ConversationFields {
  std::vector<ChatMessage> messages;
  ChatSettings settings;
};
// messages, thinking, reasoning_effort, tools.
ConversationFields read_conversation(const JsonReader& body);

// The prompt says what the constraint will see to, where the chat format has words for it. An answer that must call has
// no content that it could be said of.
void tell_format(const GenerateOptions& options, ChatSettings& settings);

// Answers to one request.
constexpr int64_t kMostChoices = 128;

// "name" of a function: 1 to 128 bytes, with no control characters. Formats of chats quote all others.
std::string read_function_name(const JsonReader& function);

// Throws naming the field for one that can be no token.
std::vector<int32_t> token_ids(const JsonReader& body, const char* field, const std::vector<int64_t>& ids);

// A field that is null says nothing.
void read_nulls(const JsonReader& object);
// Throws Error(invalid_argument) naming the first field that nobody has read.
void refuse_unread(const JsonReader& root);

}  // namespace kdelta
