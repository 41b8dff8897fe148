#include "kdelta/io/grammar/text_reader.h"

#include <algorithm>

#include "kdelta/core/error.h"
#include "kdelta/io/json.h"
#include "kdelta/io/unicode.h"

namespace kdelta::grammar {

TextReader::TextReader(std::string name, std::string_view text) : name_(std::move(name)), text_(text) {
  if (std::ssize(text) > kMostBytes)
    fail(ErrorCode::invalid_argument, name_, ": ", text.size(), " bytes, expected at most ", kMostBytes);
  if (!is_utf8(text)) fail(ErrorCode::invalid_argument, name_, ": not UTF-8");
}

uint32_t TextReader::next() {
  const Char c = decode_char(text_, at_);
  at_ += static_cast<size_t>(c.bytes);
  return c.code;
}

bool TextReader::take(std::string_view what) {
  if (!text_.substr(at_).starts_with(what)) return false;
  at_ += what.size();
  return true;
}

int64_t TextReader::number() {
  int64_t value = 0;
  const size_t begin = at_;
  for (; peek() >= '0' && peek() <= '9'; ++at_) {
    if (at_ - begin == 9) refuse_at(begin, "a number of more than 9 digits");
    value = 10 * value + (peek() - '0');
  }
  if (at_ == begin) refuse("a number");
  return value;
}

uint32_t TextReader::hex(int digits) {
  const size_t begin = at_;
  uint32_t value = 0;
  for (int i = 0; i < digits; ++i) {
    const uint32_t c = peek();
    const uint32_t lower = c | 0x20;
    if (c >= '0' && c <= '9')
      value = value << 4 | (c - '0');
    else if (lower >= 'a' && lower <= 'f')
      value = value << 4 | (lower - 'a' + 10);
    else
      refuse(str(digits, " hexadecimal digits"));
    ++at_;
  }
  if (value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) refuse_at(begin, "the number of no character");
  return value;
}

void TextReader::refuse(const std::string& expected) const {
  if (at_end()) refuse_at(at_, "the text ends, expected " + expected);
  const auto bytes = static_cast<size_t>(decode_char(text_, at_).bytes);
  refuse("found '" + printable(text_.substr(at_, bytes)) + "'", expected);
}

void TextReader::refuse(const std::string& found, const std::string& expected) const {
  refuse_at(at_, found + ", expected " + expected);
}

void TextReader::refuse_at(size_t position, const std::string& what) const {
  const std::string_view before = text_.substr(0, position);
  const auto lines = std::count(before.begin(), before.end(), '\n');
  const size_t line = before.rfind('\n') + 1;  // npos + 1 is 0
  const auto starts = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; };
  const auto column = 1 + std::count_if(before.begin() + static_cast<int64_t>(line), before.end(), starts);
  if (text_.find('\n') == std::string_view::npos)
    fail(ErrorCode::invalid_argument, name_, ": column ", column, ": ", what);
  fail(ErrorCode::invalid_argument, name_, ": line ", lines + 1, ", column ", column, ": ", what);
}

}  // namespace kdelta::grammar
