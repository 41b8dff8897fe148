#include "frontends/cli/line_input.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <stdexcept>

#include "frontends/cli/commands.h"
#include "frontends/cli/terminal.h"

namespace kdelta::cli {
namespace {

// Signals on their way to whoever waits for keys: a byte each, its number. A pipe, because any thread may get the
// signal, and because one that comes just before the wait must not be lost.
int signals[2] = {-1, -1};
std::atomic<bool> waiting{false};
int ended_by = 0;

extern "C" void signal_of_terminal(int number) {
  const int error = errno;
  if (number == SIGINT) interrupted = true;
  const bool told = number == SIGINT || number == SIGWINCH || number == SIGCONT;
  if (!told && !waiting) {
    std::signal(number, SIG_DFL);
    std::raise(number);
  }
  const char letter = static_cast<char>(number);
  (void)!write(signals[1], &letter, 1);  // full: nobody has looked at thousands of them
  errno = error;
}

void catch_terminal_signals() {
  if (pipe2(signals, O_CLOEXEC | O_NONBLOCK) != 0) throw std::runtime_error("cannot create a pipe");
  struct sigaction action {};
  action.sa_handler = signal_of_terminal;
  action.sa_flags = SA_RESTART;
  for (const int number : {SIGINT, SIGWINCH, SIGCONT, SIGTERM, SIGHUP, SIGQUIT}) sigaction(number, &action, nullptr);
}

// Those that came while nobody waited were meant for what was done then.
void forget_signals() {
  char letters[64];
  while (read(signals[0], letters, sizeof(letters)) > 0) {
  }
}

}  // namespace

int ending_signal() {
  return ended_by;
}

TerminalEvent next_terminal_event(char& byte) {
  for (;;) {
    pollfd from[2] = {{.fd = signals[0], .events = POLLIN, .revents = 0},
                      {.fd = STDIN_FILENO, .events = POLLIN, .revents = 0}};
    if (poll(from, 2, -1) < 0) {
      if (errno == EINTR) continue;
      return TerminalEvent::end;
    }
    char letter = 0;
    if (read(signals[0], &letter, 1) == 1) {
      if (letter == SIGINT) return TerminalEvent::interrupt;
      if (letter == SIGWINCH) return TerminalEvent::resized;
      if (letter == SIGCONT) return TerminalEvent::continued;
      ended_by = letter;
      return TerminalEvent::end;
    }
    if (from[1].revents == 0) continue;
    const ssize_t n = ::read(STDIN_FILENO, &byte, 1);
    if (n == 1) return TerminalEvent::byte;
    if (n == 0 || (errno != EINTR && errno != EAGAIN)) return TerminalEvent::end;
  }
}

LineInput::LineInput(const std::string& history_file, std::string leaving)
    : leaving_(std::move(leaving)), person_(isatty(STDIN_FILENO) != 0) {
  if (!person_) return;
  catch_terminal_signals();
  editor_ = make_line_editor(history_file);
}

// The terminal's own editing; it clears its line at Ctrl-C, and nobody learns what stood there.
Line LineInput::read_plain(const char* prompt) {
  say("{}", prompt);
  Line line;
  for (char c = 0;;) {
    const TerminalEvent e = next_terminal_event(c);
    if (e == TerminalEvent::interrupt) return {LineEnd::interrupt, ""};
    if (e == TerminalEvent::end) return {line.text.empty() ? LineEnd::end_of_input : LineEnd::line, line.text};
    if (e != TerminalEvent::byte) continue;
    if (c == '\n') return {LineEnd::line, line.text};
    line.text += c;
  }
}

Line LineInput::read_one(const char* prompt) {
  if (!person_) {
    Line line;
    if (std::getline(std::cin, line.text)) line.how = LineEnd::line;
    return line;
  }
  waiting = true;
  const Line line = editor_ ? editor_->read(prompt) : read_plain(prompt);
  waiting = false;
  return line;
}

std::optional<std::string> LineInput::read(const char* prompt) {
  if (person_) forget_signals();
  std::string text;
  bool warned = false;
  for (const char* p = prompt;;) {
    const Line line = read_one(p);
    if (line.how == LineEnd::interrupt) {
      say("\n");
      const bool empty = text.empty() && line.text.empty();
      if (empty && warned) {
        left_ = true;
        return std::nullopt;
      }
      if (empty) say("{}\n", leaving_);
      warned = empty;
      text.clear();
      p = prompt;
      continue;
    }
    if (line.how == LineEnd::end_of_input && text.empty()) return std::nullopt;
    text += line.text;
    if (line.how == LineEnd::end_of_input || !text.ends_with('\\')) return text;
    text.back() = '\n';
    p = "... ";
  }
}

}  // namespace kdelta::cli
