// LineInput over libedit.
#include <editline/readline.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>

#include "frontends/cli/line_input.h"

namespace kdelta::cli {

LineInput::LineInput(std::string history_file)
    : history_file_(std::move(history_file)), terminal_(isatty(STDIN_FILENO) != 0) {
  if (!terminal_) return;
  using_history();
  stifle_history(1000);
  if (!history_file_.empty()) (void)read_history(history_file_.c_str());  // the first time there is none
}

LineInput::~LineInput() = default;

std::optional<std::string> LineInput::read_one(const char* prompt) {
  if (!terminal_) {
    std::string line;
    if (!std::getline(std::cin, line)) return std::nullopt;
    return line;
  }
  char* raw = readline(prompt);
  if (raw == nullptr) return std::nullopt;
  std::string line(raw);
  std::free(raw);
  if (line.empty()) return line;
  add_history(line.c_str());
  // At once: Ctrl-C at the prompt ends the program. An unwritable home loses history, nothing else.
  if (!history_file_.empty()) (void)write_history(history_file_.c_str());
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
