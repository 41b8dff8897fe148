// LineEditor over libedit.
#include <histedit.h>
#include <langinfo.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <cwchar>
#include <optional>

#include "frontends/cli/line_input.h"

namespace kdelta::cli {
namespace {

// libedit keeps and shows a line by the locale's characters, and drops what the locale does not have. The person's own
// locale where its text is UTF-8, else the one that says nothing but that. Of all categories this one alone: numbers
// keep their point.
bool enter_utf8_locale() {
  for (const char* name : {"", "C.UTF-8"})
    if (std::setlocale(LC_CTYPE, name) != nullptr && std::strcmp(nl_langinfo(CODESET), "UTF-8") == 0) return true;
  std::setlocale(LC_CTYPE, "C");
  return false;
}

std::string utf8_of(const wchar_t* text, size_t length) {
  std::string out;
  std::mbstate_t state{};
  for (size_t i = 0; i < length; ++i) {
    char bytes[MB_LEN_MAX];
    const size_t n = std::wcrtomb(bytes, text[i], &state);
    if (n != static_cast<size_t>(-1)) out.append(bytes, n);  // getc() lets no other in
  }
  return out;
}

class Libedit : public LineEditor {
 public:
  explicit Libedit(std::string history_file) : history_file_(std::move(history_file)), history_(history_init()) {
    // stdout is for answers, unless it is all that the person sees.
    FILE* shown = isatty(STDERR_FILENO) == 0 && isatty(STDOUT_FILENO) != 0 ? stdout : stderr;
    edit_ = el_init("kdelta", stdin, shown, stderr);
    HistEvent event;
    history(history_, &event, H_SETSIZE, 1000);
    if (!history_file_.empty())
      (void)history(history_, &event, H_LOAD, history_file_.c_str());  // at first there is none
    el_set(edit_, EL_CLIENTDATA, this);
    el_set(
        edit_, EL_PROMPT, +[](EditLine* e) { return const_cast<char*>(of(e)->prompt_); });
    el_set(edit_, EL_HIST, history, history_);
    el_set(edit_, EL_EDITOR, "emacs");
    el_wset(
        edit_, EL_GETCFN, +[](EditLine* e, wchar_t* c) { return of(e)->next_char(c); });
    el_set(edit_, EL_ADDFN, "complete-file", "Complete the name of a file", _el_fn_complete);
    for (const auto& [keys, name] : {std::pair{"^I", "complete-file"},
                                     {"^R", "em-inc-search-prev"},
                                     {"\\033[3~", "ed-delete-next-char"},
                                     {"\\033[H", "ed-move-to-beg"},
                                     {"\\033[F", "ed-move-to-end"},
                                     {"\\033[1~", "ed-move-to-beg"},
                                     {"\\033[4~", "ed-move-to-end"},
                                     {"\\033[1;5C", "em-next-word"},
                                     {"\\033[1;5D", "ed-prev-word"}})
      el_set(edit_, EL_BIND, keys, name, nullptr);
  }
  ~Libedit() override {
    el_end(edit_);
    history_end(history_);
  }
  Libedit(const Libedit&) = delete;
  Libedit& operator=(const Libedit&) = delete;

  Line read(const char* prompt) override {
    prompt_ = prompt;
    stopped_.reset();
    take_keys();
    int n = 0;
    const wchar_t* raw = el_wgets(edit_, &n);
    if (stopped_) return {*stopped_, standing_};
    if (raw == nullptr || n <= 0) return {LineEnd::end_of_input, ""};  // Ctrl-D
    std::string line = utf8_of(raw, static_cast<size_t>(n));
    while (line.ends_with('\n') || line.ends_with('\r')) line.pop_back();
    if (!line.empty()) remember(line);
    return {LineEnd::line, line};
  }

 private:
  // Left alone, libedit shows the prompt while the keys are still the terminal's own, who edits and echoes them itself:
  // a Ctrl-D typed at its sight would be lost, a Ctrl-C would forget what was typed before it.
  void take_keys() {
    el_set(edit_, EL_PREP_TERM, 1);
    if (ioctl(STDIN_FILENO, FIONREAD, &typed_ahead_) != 0) typed_ahead_ = 0;
  }

  static Libedit* of(EditLine* edit) {
    void* self = nullptr;
    el_get(edit, EL_CLIENTDATA, &self);
    return static_cast<Libedit*>(self);
  }

  // At once: a program can end at any moment. An unwritable home loses history, nothing else.
  void remember(const std::string& line) {
    HistEvent event;
    history(history_, &event, H_ENTER, line.c_str());
    if (!history_file_.empty()) (void)history(history_, &event, H_SAVE, history_file_.c_str());
  }

  // 1: a character. 0: none comes any more, `stopped_` says why.
  int next_char(wchar_t* out) {
    std::mbstate_t state{};
    for (bool first = true;; first = false) {
      char byte = 0;
      if (again_) {
        byte = *again_;
        again_.reset();
      } else if (const LineEnd end = next_byte(byte); end != LineEnd::line) {
        stopped_ = end;
        const LineInfoW* now = el_wline(edit_);
        standing_ = utf8_of(now->buffer, static_cast<size_t>(now->lastchar - now->buffer));
        return 0;
      }
      const size_t n = std::mbrtowc(out, &byte, 1, &state);
      if (n == static_cast<size_t>(-2)) continue;
      if (n != static_cast<size_t>(-1)) return 1;
      if (!first) again_ = byte;  // the character before it was cut
      *out = L'\uFFFD';           // in plain sight
      return 1;
    }
  }

  LineEnd next_byte(char& byte) {
    for (;;) switch (next_terminal_event(byte)) {
        case TerminalEvent::byte:
          // A Ctrl-D of before take_keys(): the terminal left a zero in its place.
          if (typed_ahead_ > 0 && typed_ahead_-- > 0 && byte == '\0') byte = '\x04';
          return LineEnd::line;
        case TerminalEvent::end:
          return LineEnd::end_of_input;
        case TerminalEvent::interrupt:
          return LineEnd::interrupt;
        case TerminalEvent::resized:
          el_resize(edit_);
          break;
        case TerminalEvent::continued:  // the shell had the terminal meanwhile
          el_set(edit_, EL_PREP_TERM, 1);
          el_set(edit_, EL_REFRESH);
          break;
      }
  }

  std::string history_file_;
  History* history_;
  EditLine* edit_ = nullptr;
  const char* prompt_ = "";
  int typed_ahead_ = 0;  // bytes still to be read that were typed before the last take_keys()
  std::optional<char> again_;
  std::optional<LineEnd> stopped_;
  std::string standing_;
};

}  // namespace

std::unique_ptr<LineEditor> make_line_editor(const std::string& history_file) {
  if (!enter_utf8_locale()) return nullptr;
  return std::make_unique<Libedit>(history_file);
}

}  // namespace kdelta::cli
