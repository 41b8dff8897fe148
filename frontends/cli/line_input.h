// Lines from a person (editing, history) or from a pipe.
#pragma once

#include <optional>
#include <string>

namespace kdelta::cli {

class LineInput {
 public:
  // History is kept in `history_file` (empty: in memory only).
  explicit LineInput(std::string history_file);
  ~LineInput();
  LineInput(const LineInput&) = delete;
  LineInput& operator=(const LineInput&) = delete;
  // One line without its end; nothing at end of input. A line that ends in a backslash goes on in the next.
  std::optional<std::string> read(const char* prompt);

 private:
  std::optional<std::string> read_one(const char* prompt);
  std::string history_file_;
  bool terminal_;
};

}  // namespace kdelta::cli
