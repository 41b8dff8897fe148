// The characters of a grammar's or a pattern's text one by one, and errors that say where: "grammar: line 3, column 7:
// found '=', expected ::=".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kdelta::grammar {

class TextReader {
 public:
  static constexpr int64_t kMostBytes = int64_t{1} << 20;

  // Throws Error(invalid_argument) for text that is not UTF-8 or longer than kMostBytes.
  TextReader(std::string name, std::string_view text);

  bool at_end() const { return at_ == text_.size(); }
  size_t position() const { return at_; }  // in bytes
  // The character `bytes` further on, 0 at the end; for the ASCII characters that syntax is made of.
  uint32_t peek(size_t bytes = 0) const {
    return at_ + bytes < text_.size() ? static_cast<unsigned char>(text_[at_ + bytes]) : 0;
  }
  uint32_t next();  // not at the end
  bool take(std::string_view what);
  // Decimal, at most 9 digits.
  int64_t number();
  // Exactly that many hexadecimal digits, of a Unicode scalar value.
  uint32_t hex(int digits);

  [[noreturn]] void refuse(const std::string& expected) const;
  [[noreturn]] void refuse(const std::string& found, const std::string& expected) const;
  [[noreturn]] void refuse_at(size_t position, const std::string& what) const;

 private:
  std::string name_;
  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace kdelta::grammar
