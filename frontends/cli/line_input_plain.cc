// LineInput without libedit: no editing, no history.
#include <unistd.h>

#include <cstdio>
#include <iostream>

#include "frontends/cli/line_input.h"

namespace kdelta::cli {

LineInput::LineInput(std::string history_file)
    : history_file_(std::move(history_file)), terminal_(isatty(STDIN_FILENO) != 0) {}
LineInput::~LineInput() = default;

std::optional<std::string> LineInput::read_one(const char* prompt) {
  if (terminal_) std::fputs(prompt, stderr);
  std::string line;
  if (!std::getline(std::cin, line)) return std::nullopt;
  return line;
}

std::optional<std::string> LineInput::read(const char* prompt) {
  std::optional<std::string> line = read_one(prompt);
  while (line && line->ends_with('\\')) {
    line->back() = '\n';
    const auto more = read_one("... ");
    if (!more) break;
    *line += *more;
  }
  return line;
}

}  // namespace kdelta::cli
