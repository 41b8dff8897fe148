#include "kdelta/io/tokenizer_file.h"

#include <charconv>
#include <cstdint>
#include <unordered_map>

#include "kdelta/core/error.h"
#include "kdelta/io/json.h"

namespace kdelta {
namespace {

struct Line {
  const std::string& file;
  int64_t number;
  template <class... Parts>
  [[noreturn]] void refuse(const Parts&... parts) const {
    fail(ErrorCode::bad_file, file, " line ", number, ": ", parts...);
  }
};

int base64_value(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  if (c == '+') return 62;
  return c == '/' ? 63 : -1;
}

std::string base64_bytes(std::string_view code, const Line& line) {
  if (code.empty()) line.refuse("no token in front of the space");
  if (code.size() / 4 * 3 > kMaxTokenBytes) line.refuse("token of more than ", kMaxTokenBytes, " bytes");
  const size_t padding = code.ends_with("==") ? 2 : code.ends_with('=') ? 1 : 0;
  if (code.size() % 4 != 0)
    line.refuse("bad base64 '", printable(code), "': length ", code.size(), " is no multiple of 4");
  std::string bytes;
  uint32_t bits = 0;
  for (size_t i = 0; i < code.size(); ++i) {
    const bool pad = i >= code.size() - padding;
    const int value = pad ? 0 : base64_value(code[i]);
    if (value < 0) line.refuse("bad base64 '", printable(code), "': character ", i + 1);
    bits = bits << 6 | static_cast<uint32_t>(value);
    if (i % 4 == 3)
      for (int shift : {16, 8, 0}) bytes.push_back(static_cast<char>(bits >> shift & 0xFF));
  }
  for (size_t i = 0; i < padding; ++i) {
    if (bytes.back() != 0) line.refuse("bad base64 '", printable(code), "': bits set behind the last byte");
    bytes.pop_back();
  }
  return bytes;
}

int64_t parse_rank(std::string_view text, const Line& line) {
  int64_t rank = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rank);
  if (error != std::errc() || end != text.data() + text.size() || rank < 0 || rank > INT32_MAX)
    line.refuse("rank '", printable(text), "', expected 0, 1, 2, ...");
  return rank;
}

void require_single_bytes(const std::unordered_map<std::string, int64_t>& line_of, const std::string& name) {
  for (int b = 0; b < 256; ++b)
    if (!line_of.contains(std::string(1, static_cast<char>(b))))
      fail(ErrorCode::bad_file, name, ": no token for the single byte ", b, ", so not every text can be encoded");
}

}  // namespace

std::vector<std::string> parse_tiktoken(std::string_view text, const std::string& name) {
  std::unordered_map<std::string, int64_t> line_of;                             // token -> line
  std::unordered_map<int64_t, std::pair<int64_t, const std::string*>> by_rank;  // rank -> line, token
  for (Line line{name, 1}; !text.empty(); ++line.number) {
    std::string_view row = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), row.size() + 1));
    if (row.ends_with('\r')) row.remove_suffix(1);
    if (row.empty()) continue;
    const size_t space = row.find(' ');
    if (space == std::string_view::npos) line.refuse("'", printable(row), "', expected base64, a space and a rank");
    const int64_t rank = parse_rank(row.substr(space + 1), line);
    const auto [token, token_is_new] = line_of.emplace(base64_bytes(row.substr(0, space), line), line.number);
    if (!token_is_new) line.refuse("the token of line ", token->second, " again");
    const auto [entry, rank_is_new] = by_rank.emplace(rank, std::pair(line.number, &token->first));
    if (!rank_is_new) line.refuse("rank ", rank, " again, first in line ", entry->second.first);
  }
  require_single_bytes(line_of, name);
  std::vector<std::string> tokens;
  for (int64_t rank = 0; rank < static_cast<int64_t>(by_rank.size()); ++rank) {
    const auto entry = by_rank.find(rank);
    if (entry == by_rank.end())
      fail(ErrorCode::bad_file, name, ": rank ", rank, " is missing, the file has ", by_rank.size(), " tokens");
    tokens.push_back(*entry->second.second);
  }
  return tokens;
}

}  // namespace kdelta
