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

// Throws naming the field for one that can be no token.
std::vector<int32_t> token_ids(const JsonReader& body, const char* field, const std::vector<int64_t>& ids);

// A field that is null says nothing.
void read_nulls(const JsonReader& object);
// Throws Error(invalid_argument) naming the first field that nobody has read.
void refuse_unread(const JsonReader& root);

}  // namespace kdelta
