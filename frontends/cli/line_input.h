// Lines from a person (editing, history) or from a pipe.
#pragma once

#include <memory>
#include <optional>
#include <string>

namespace kdelta::cli {

// What a person's keys and signals bring, in the order in which they come.
enum class TerminalEvent : uint8_t { byte, end, interrupt, resized, continued };
// Waits for the next one; `byte` holds the key's. While nobody waits, Ctrl-C sets `interrupted` and nothing else, and a
// signal that asks for the end ends the process.
TerminalEvent next_terminal_event(char& byte);
// The signal that asked for the end while somebody waited; 0: none did.
int ending_signal();

// One line without its end. Throws nothing.
enum class LineEnd : uint8_t { line, end_of_input, interrupt };
struct Line {
  LineEnd how = LineEnd::end_of_input;
  std::string text;  // of an interrupted line what stood there, where that is known
};

// The editor of a terminal's lines.
class LineEditor {
 public:
  virtual ~LineEditor() = default;
  virtual Line read(const char* prompt) = 0;
};
// None where the program has no editor, or the system no locale in which characters beyond ASCII could be edited.
std::unique_ptr<LineEditor> make_line_editor(const std::string& history_file);

// On a terminal, from its construction on, Ctrl-C never ends the process by itself.
class LineInput {
 public:
  // History is kept in `history_file` (empty: in memory only). `leaving`: said at a first Ctrl-C on an empty line.
  LineInput(const std::string& history_file, std::string leaving);
  bool person() const { return person_; }
  // One line without its end; nothing at end of input, or behind a second Ctrl-C in a row on an empty line. On a line
  // that is not empty Ctrl-C clears it. A line that ends in a backslash goes on in the next.
  std::optional<std::string> read(const char* prompt);
  // Why read() had nothing.
  bool left() const { return left_; }

 private:
  Line read_one(const char* prompt);
  Line read_plain(const char* prompt);
  std::unique_ptr<LineEditor> editor_;
  std::string leaving_;
  bool person_, left_ = false;
};

}  // namespace kdelta::cli
