// What the encoders of chat.h share.
#pragma once

#include <string_view>

#include "kdelta/io/chat.h"

namespace kdelta {

// Collects the ids of a prompt, piece by piece.
class PromptWriter {
 public:
  explicit PromptWriter(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  // The special token of that name, which the vocabulary has.
  void special(std::string_view name);
  // Ordinary text, encoded on its own.
  void text(std::string_view piece) { tokenizer_.encode(piece, ids_); }
  std::vector<int32_t> take() { return std::move(ids_); }

 private:
  const Tokenizer& tokenizer_;
  std::vector<int32_t> ids_;
};

std::string_view role_name(Role role);
bool is_blank(std::string_view text);
// The type attribute of an argument in K3's format, which knows no integers beside numbers.
std::string_view xtml_type(const Json& value);
// A value as it stands between the quotes of an attribute of K3's format.
std::string xtml_escaped(std::string_view value);
// Throws Error(invalid_argument) unless `tools` is null or an array; true when there are any.
bool has_tools(const Json& tools, std::string_view field);

void write_xtml_prompt(PromptWriter& out, std::span<const Message> messages, const ChatOptions& options);
void write_k2_prompt(PromptWriter& out, std::span<const Message> messages, const ChatOptions& options);

}  // namespace kdelta
