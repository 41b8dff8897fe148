// Helpers of the chat tests.
#pragma once

#include "kdelta/io/chat.h"

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

inline Json json(std::string_view text) {
  return parse_json(text, {"json", ErrorCode::invalid_argument});
}

}  // namespace kdelta::test
