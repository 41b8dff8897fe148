// Helpers of the chat tests.
#pragma once

#include "kdelta/io/chat.h"
#include "kdelta/io/mapped_file.h"
#include "kdelta/io/tokenizer_file.h"

namespace kdelta::test {

// Expected prompts: pieces between bars, each a special token or a text that is encoded by itself.
inline std::vector<int32_t> pieces(const Tokenizer& t, std::string_view pattern) {
  std::vector<int32_t> ids;
  while (!pattern.empty()) {
    const size_t bar = pattern.find('|', pattern.starts_with("<|") ? pattern.find("|>") + 2 : 0);
    const std::string_view piece = pattern.substr(0, bar);
    if (t.special_id(piece) >= 0)
      ids.push_back(t.special_id(piece));
    else
      t.encode(piece, ids);
    pattern.remove_prefix(bar == std::string_view::npos ? pattern.size() : bar + 1);
  }
  return ids;
}

inline Message tool_result(std::string content, std::string call_id = "", std::string name = "") {
  return {.role = Role::tool, .name = std::move(name), .content = std::move(content), .call_id = std::move(call_id)};
}

inline std::vector<std::string> fixture_tokens() {
  return parse_tiktoken(read_text_file("tests/tokenizer/tiktoken.model", 1 << 20), "fixture");
}

// The specials of the 48B release and the thinking marks of later K2 models, at their offsets behind the last rank.
inline std::vector<NamedSpecial> k2_specials(int64_t base) {
  const std::pair<int, const char*> names[] = {{0, "[BOS]"},
                                               {1, "[EOS]"},
                                               {2, "<|im_end|>"},
                                               {3, "<|im_user|>"},
                                               {4, "<|im_assistant|>"},
                                               {10, "<|im_system|>"},
                                               {11, "<|tool_calls_section_begin|>"},
                                               {12, "<|tool_calls_section_end|>"},
                                               {13, "<|tool_call_begin|>"},
                                               {14, "<|tool_call_argument_begin|>"},
                                               {15, "<|tool_call_end|>"},
                                               {17, "<|im_middle|>"},
                                               {22, "<think>"},
                                               {23, "</think>"}};
  std::vector<NamedSpecial> named;
  for (const auto& [offset, name] : names) named.push_back({base + offset, name});
  return named;
}

inline const Tokenizer& k2() {
  static const Tokenizer tokenizer = [] {
    const std::vector<std::string> tokens = fixture_tokens();
    return Tokenizer(tokens, k2_specials(std::ssize(tokens)), "k2");
  }();
  return tokenizer;
}

inline Json json(std::string_view text) {
  return parse_json(text, {"json", ErrorCode::invalid_argument});
}

}  // namespace kdelta::test
