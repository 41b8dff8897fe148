// The vocabulary file `tiktoken.model`: one token a line, base64 of its bytes, a space, its rank.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kdelta {

// Longest token accepted, in bytes: bounds the table and what one id can print.
inline constexpr size_t kMaxTokenBytes = 4096;

// Tokens by rank. Lines may come in any order and may end in CR; empty lines are skipped. Throws Error(bad_file) with
// `name`, the line and the reason: malformed line, bad base64, an empty or overlong token, a rank or a token twice, a
// gap in the ranks, a single byte that is no token.
std::vector<std::string> parse_tiktoken(std::string_view text, const std::string& name);

}  // namespace kdelta
