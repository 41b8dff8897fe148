// A vocabulary under which ids show where a text was cut into pieces: all bytes, and all pairs of bytes that meet where
// two characters meet. tools/make_tokenizer_fixture.py makes the same one for tiktoken.
#pragma once

#include <string>
#include <vector>

namespace kdelta::test {

inline std::vector<std::string> pair_tokens() {
  struct Range {
    int begin, end;
  };
  constexpr Range kAscii{0, 0x80}, kTail{0x80, 0xC0}, kLead{0xC2, 0xF5};
  std::vector<std::string> tokens;
  for (int b = 0; b < 256; ++b) tokens.emplace_back(1, static_cast<char>(b));
  for (const auto& [first, second] : {std::pair(kTail, kAscii), {kAscii, kLead}, {kTail, kLead}, {kAscii, kAscii}})
    for (int a = first.begin; a < first.end; ++a)
      for (int b = second.begin; b < second.end; ++b) tokens.push_back({static_cast<char>(a), static_cast<char>(b)});
  return tokens;
}

}  // namespace kdelta::test
