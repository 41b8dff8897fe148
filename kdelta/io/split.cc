#include "kdelta/io/split.h"

#include "kdelta/io/unicode.h"

namespace kdelta {
namespace {

struct Classified {
  uint8_t cls;
  size_t end;  // offset behind the character
};

KDELTA_INLINE Classified class_at(std::string_view text, size_t pos) {
  const Char c = decode_char(text, pos);
  return {c.state == Utf8::valid ? char_class(c.code) : uint8_t{0}, pos + static_cast<size_t>(c.bytes)};
}

// End of the run of characters with any of `bits`.
KDELTA_INLINE size_t run_of(std::string_view text, size_t pos, uint8_t bits) {
  while (pos < text.size()) {
    const Classified c = class_at(text, pos);
    if (!(c.cls & bits)) break;
    pos = c.end;
  }
  return pos;
}

// Contractions, case-insensitive. Under simple case folding the long s U+017F is an s.
size_t contraction_end(std::string_view text, size_t pos) {
  if (pos + 1 >= text.size() || text[pos] != '\'') return pos;
  const auto lower = [&](size_t i) { return i < text.size() ? static_cast<char>(text[i] | 0x20) : '\0'; };
  const char a = lower(pos + 1), b = lower(pos + 2);
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return pos + 2;
  if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return pos + 3;
  if (text.substr(pos + 1, 2) == "\u017F") return pos + 3;
  return pos;
}

// Alternatives 2 and 3. U and W share Lm, Lo and M, so W+ may have to take back what U* took: all that matters is where
// the last shared character of the U run lies.
size_t word_end(std::string_view text, size_t begin, Classified first) {
  const size_t start = first.cls & kLetter ? begin : first.end;  // behind the optional P
  size_t pos = start, behind_shared = 0;
  while (pos < text.size()) {
    const Classified c = class_at(text, pos);
    if (!(c.cls & kUpper)) {
      if (c.cls & kLower) return contraction_end(text, run_of(text, c.end, kLower));
      break;
    }
    pos = c.end;
    if (c.cls & kLower) behind_shared = pos;
  }
  if (behind_shared) return contraction_end(text, behind_shared);
  // A mark is a P as well as a W: when nothing behind it matches W+, the mark alone does.
  if (!(first.cls & kLetter) && (first.cls & kLower)) return contraction_end(text, start);
  return pos > start ? contraction_end(text, pos) : begin;
}

size_t number_end(std::string_view text, size_t pos) {
  for (int i = 0; i < 3 && pos < text.size(); ++i) {
    const Classified c = class_at(text, pos);
    if (!(c.cls & kNumber)) break;
    pos = c.end;
  }
  return pos;
}

// Alternative 5.
size_t symbols_end(std::string_view text, size_t begin) {
  const size_t start = begin + (text[begin] == ' ');
  size_t pos = start;
  while (pos < text.size()) {
    const Classified c = class_at(text, pos);
    if (c.cls & (kSpace | kLetter | kNumber)) break;
    pos = c.end;
  }
  return pos > start ? run_of(text, pos, kNewline) : begin;
}

// Alternatives 6, 7 and 8.
size_t space_end(std::string_view text, size_t begin) {
  size_t pos = begin, last = begin, behind_newline = 0;
  while (pos < text.size()) {
    const Classified c = class_at(text, pos);
    if (!(c.cls & kSpace)) break;
    last = pos;
    pos = c.end;
    if (c.cls & kNewline) behind_newline = pos;
  }
  if (behind_newline) return behind_newline;
  return pos < text.size() && last > begin ? last : pos;
}

// White space as the vendor's wrapper counts it (Python's str.isspace): White_Space and the four information
// separators.
bool is_wrapper_space(const Char& c) {
  if (c.state != Utf8::valid) return false;
  return (c.code >= 0x1C && c.code <= 0x1F) || (char_class(c.code) & kSpace);
}

}  // namespace

std::vector<size_t> chunk_ends(std::string_view text) {
  std::vector<size_t> ends;
  if (text.empty()) return ends;
  int chars = 0, run = 0;
  bool run_is_space = false;
  // A text of at most kMaxRunChars bytes cannot hold a longer run.
  for (size_t pos = text.size() > kMaxRunChars ? 0 : text.size(); pos < text.size();) {
    const Char c = decode_char(text, pos);
    const bool space = is_wrapper_space(c);
    if (chars == kMaxChunkChars) {
      ends.push_back(pos);
      chars = run = 0;
    }
    if (run > 0 && space != run_is_space) run = 0;
    run_is_space = space;
    if (run == kMaxRunChars) {
      ends.push_back(pos);
      run = 0;
    }
    ++run;
    ++chars;
    pos += static_cast<size_t>(c.bytes);
  }
  ends.push_back(text.size());
  return ends;
}

size_t piece_end(std::string_view chunk, size_t begin) {
  const Classified first = class_at(chunk, begin);
  if (first.cls & kHan) return run_of(chunk, first.end, kHan);
  if (!(first.cls & (kNewline | kNumber))) {
    const size_t end = word_end(chunk, begin, first);
    if (end > begin) return end;
  }
  if (first.cls & kNumber) return number_end(chunk, begin);
  const size_t end = symbols_end(chunk, begin);
  return end > begin ? end : space_end(chunk, begin);
}

}  // namespace kdelta
