#include "kdelta/io/chat.h"

#include <algorithm>

#include "kdelta/core/check.h"
#include "kdelta/io/chat_prompt.h"

namespace kdelta {
namespace {

constexpr std::string_view kXtmlSpecials[] = {"<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"};
constexpr std::string_view kK2Specials[] = {"<|im_system|>", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>",
                                            "<|im_end|>"};

bool has_all(const Tokenizer& tokenizer, std::span<const std::string_view> names) {
  return std::all_of(names.begin(), names.end(),
                     [&](std::string_view name) { return tokenizer.special_id(name) >= 0; });
}

}  // namespace

ChatEncoder::ChatEncoder(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {
  if (has_all(tokenizer, kXtmlSpecials)) {
    format_ = ChatFormat::xtml;
    stop_ids_.push_back(tokenizer.special_id("<|end_of_msg|>"));
  } else if (has_all(tokenizer, kK2Specials)) {
    format_ = ChatFormat::k2;
    stop_ids_.push_back(tokenizer.special_id("<|im_end|>"));
  } else {
    fail(ErrorCode::unsupported,
         "the tokenizer has the special tokens of no known chat format: neither <|open|>, <|close|>, <|sep|>, "
         "<|end_of_msg|> nor <|im_system|>, <|im_user|>, <|im_assistant|>, <|im_middle|>, <|im_end|>");
  }
  if (tokenizer.special_id("[EOS]") >= 0) stop_ids_.push_back(tokenizer.special_id("[EOS]"));
}

std::vector<int32_t> ChatEncoder::encode(std::span<const Message> messages, const ChatOptions& options) const {
  PromptWriter out(*tokenizer_);
  switch (format_) {
    case ChatFormat::xtml:
      write_xtml_prompt(out, messages, options);
      return out.take();
    case ChatFormat::k2:
      write_k2_prompt(out, messages, options);
      return out.take();
  }
  KDELTA_UNREACHABLE("chat format", format_);
}

void PromptWriter::special(std::string_view name) {
  const int id = tokenizer_.special_id(name);
  if (id < 0) fail(ErrorCode::unsupported, "the tokenizer has no special token ", name);
  ids_.push_back(id);
}

std::string_view role_name(Role role) {
  switch (role) {
    case Role::system:
      return "system";
    case Role::user:
      return "user";
    case Role::assistant:
      return "assistant";
    case Role::tool:
      return "tool";
  }
  KDELTA_UNREACHABLE("role", role);
}

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n\v\f") == std::string_view::npos;
}

std::string_view xtml_type(const Json& value) {
  return value.kind() == Json::Kind::integer ? kind_name(Json::Kind::real) : kind_name(value.kind());
}

bool has_tools(const Json& tools, std::string_view field) {
  if (tools.is_null()) return false;
  if (tools.kind() != Json::Kind::array)
    fail(ErrorCode::invalid_argument, field, ": ", describe(tools), ", expected an array");
  return !tools.array().empty();
}

}  // namespace kdelta
