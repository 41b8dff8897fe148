#include "kdelta/io/grammar/regex.h"

#include "kdelta/core/check.h"
#include "kdelta/io/grammar/text_reader.h"
#include "kdelta/io/unicode.h"

namespace kdelta::grammar {
namespace {

constexpr int kMostGroups = 150;  // one in the other

CharSet of_class(uint8_t mask) {
  std::vector<CharRange> ranges;
  for (uint32_t c = 0; c <= kLastChar; ++c) {
    if ((char_class(c) & mask) == 0) continue;
    if (!ranges.empty() && ranges.back().high + 1 == c)
      ranges.back().high = c;
    else
      ranges.push_back({c, c});
  }
  return CharSet(std::move(ranges));
}

const CharSet& digits() {
  static const CharSet set({{'0', '9'}});
  return set;
}
const CharSet& no_digits() {
  static const CharSet set = CharSet::all() - of_class(kNumber);
  return set;
}
const CharSet& spaces() {
  static const CharSet set({{'\t', '\r'}, {' ', ' '}});
  return set;
}
const CharSet& no_spaces() {
  static const CharSet set =
      CharSet::all() - of_class(kSpace) - CharSet({{0x1C, 0x1F}, {0x180E, 0x180E}, {0xFEFF, 0xFEFF}});
  return set;
}
const CharSet& words() {
  static const CharSet set({{'a', 'z'}, {'A', 'Z'}, {'0', '9'}, {'_', '_'}});
  return set;
}
const CharSet& no_words() {
  static const CharSet set = CharSet({{0, 0x7F}}) - words();
  return set;
}
const CharSet& any_in_line() {
  static const CharSet set = CharSet::all() - CharSet({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}});
  return set;
}

bool is_digit(uint32_t c) {
  return c >= '0' && c <= '9';
}

class Parser {
 public:
  Parser(Grammar& out, const std::string& name, std::string_view pattern, Anchors anchors, const WriteChars& write,
         Reading reading)
      : in_(name, pattern), out_(out), anchors_(anchors), write_(write), most_(reading == Reading::most) {}

  ExprId run() {
    std::vector<ExprId> all;
    do all.push_back(outer_alternative());
    while (in_.take("|"));
    if (!in_.at_end()) in_.refuse("the end of the pattern");
    return out_.choice(std::move(all));
  }

 private:
  // A class that leaves \w out must leave out all that any engine takes for \w.
  enum class Use : uint8_t { outside, in_class, left_out };

  ExprId outer_alternative() {
    const bool begins = in_.take("^");
    std::vector<ExprId> parts = terms(0);
    const bool ends = in_.take("$");
    if (ends && !in_.at_end() && in_.peek() != '|') in_.refuse_at(in_.position() - 1, kAnchor);
    if (ends && most_) parts.push_back(out_.optional(write_(one('\n'))));
    if (anchors_ == Anchors::search && !begins) parts.insert(parts.begin(), anything());
    if (anchors_ == Anchors::search && !ends) parts.push_back(anything());
    return out_.sequence(std::move(parts));
  }

  ExprId anything() { return out_.repeat(write_(CharSet::all()), 0, kNoEnd); }

  ExprId alternatives(int groups) {
    std::vector<ExprId> all;
    do all.push_back(out_.sequence(terms(groups)));
    while (in_.take("|"));
    return out_.choice(std::move(all));
  }

  std::vector<ExprId> terms(int groups) {
    std::vector<ExprId> parts;
    while (!in_.at_end() && in_.peek() != '|' && in_.peek() != ')') {
      if (in_.peek() == '$' && groups == 0) break;
      parts.push_back(repeated(atom(groups)));
    }
    return parts;
  }

  ExprId atom(int groups) {
    const size_t begin = in_.position();
    if (in_.take("(")) return group(groups, begin);
    if (in_.take("[")) return write_(char_class(begin));
    if (in_.take(".")) return write_(most_ ? CharSet::all() : any_in_line());
    if (in_.peek() == '^' || in_.peek() == '$') in_.refuse_at(begin, kAnchor);
    if (in_.peek() == '*' || in_.peek() == '+' || in_.peek() == '?' || at_counts())
      in_.refuse_at(begin, "nothing in front to repeat");
    if (in_.take("\\")) return write_(escape(begin, Use::outside));
    const uint32_t c = in_.next();
    return write_(CharSet({{c, c}}));
  }

  ExprId group(int groups, size_t begin) {
    if (groups == kMostGroups) in_.refuse_at(begin, "more than 150 groups, one in the other");
    if (in_.take("?")) {
      if (in_.peek() == '=' || in_.peek() == '!') in_.refuse_at(begin, "look-ahead is not supported");
      if (in_.take("P<") || (in_.peek() == '<' && in_.peek(1) != '=' && in_.peek(1) != '!' && in_.take("<"))) {
        while (!in_.take(">")) {
          if (in_.at_end()) in_.refuse(">");
          in_.next();
        }
      } else if (in_.peek() == '<') {
        in_.refuse_at(begin, "look-behind is not supported");
      } else if (!in_.take(":")) {
        in_.refuse_at(begin, "flags and special groups are not supported; (?: and (?<name> are");
      }
    }
    const ExprId inner = alternatives(groups + 1);
    if (!in_.take(")")) in_.refuse(")");
    return inner;
  }

  // "{3", "{,": what stands in braces otherwise is text.
  bool at_counts() const { return in_.peek() == '{' && is_digit(in_.peek(1)); }

  ExprId repeated(ExprId e) {
    int64_t least = 1, most = 1;
    if (in_.take("*"))
      least = 0, most = kNoEnd;
    else if (in_.take("+"))
      most = kNoEnd;
    else if (in_.take("?"))
      least = 0;
    else if (at_counts())
      counts(least, most);
    else
      return e;
    (void)in_.take("?");
    const size_t behind = in_.position();
    if (in_.peek() == '*' || in_.peek() == '+' || in_.peek() == '?' || at_counts())
      in_.refuse_at(behind, "a repetition of a repetition");
    return out_.repeat(e, least, most);
  }

  void counts(int64_t& least, int64_t& most) {
    (void)in_.take("{");
    most = least = in_.number();
    if (in_.take(",")) most = in_.peek() == '}' ? kNoEnd : in_.number();
    if (!in_.take("}")) in_.refuse("}");
  }

  CharSet char_class(size_t begin) {
    const Use use = in_.take("^") ? Use::left_out : Use::in_class;
    CharSet set;
    if (in_.peek() == ']') in_.refuse_at(begin, "an empty class; ']' in a class is written \\]");
    while (!in_.take("]")) {
      if (in_.at_end()) in_.refuse("]");
      const size_t first = in_.position();
      const CharSet low = class_item(use);
      if (in_.peek() != '-' || in_.peek(1) == ']') {
        set = set | low;
        continue;
      }
      in_.next();
      if (in_.at_end()) in_.refuse("]");
      const CharSet high = class_item(use);
      if (!is_one(low) || !is_one(high)) in_.refuse_at(first, "a range between classes");
      if (low.ranges()[0].low > high.ranges()[0].low) in_.refuse_at(first, "a range that ends before it begins");
      set = set | CharSet({{low.ranges()[0].low, high.ranges()[0].low}});
    }
    return use == Use::left_out ? set.complement() : set;
  }

  static bool is_one(const CharSet& set) {
    return set.ranges().size() == 1 && set.ranges()[0].low == set.ranges()[0].high;
  }

  CharSet class_item(Use use) {
    const size_t begin = in_.position();
    if (in_.take("\\")) return escape(begin, use);
    if (in_.peek() == '[' && (in_.peek(1) == ':' || in_.peek(1) == '=' || in_.peek(1) == '.'))
      in_.refuse_at(begin, "named classes in brackets are not supported");
    const uint32_t c = in_.next();
    return CharSet({{c, c}});
  }

  CharSet escape(size_t begin, Use use) {
    if (in_.at_end()) in_.refuse("what is escaped");
    const uint32_t c = in_.next();
    const bool wide = (use == Use::left_out) != most_;
    switch (c) {
      case 'd':
        return wide ? no_digits().complement() : digits();
      case 'D':
        return wide ? digits().complement() : no_digits();
      case 's':
        return wide ? no_spaces().complement() : spaces();
      case 'S':
        return wide ? spaces().complement() : no_spaces();
      case 'w':
        return wide ? no_words().complement() : words();
      case 'W':
        return wide ? words().complement() : no_words();
      case 'n':
        return one('\n');
      case 'r':
        return one('\r');
      case 't':
        return one('\t');
      case 'f':
        return one('\f');
      case 'v':
        return one('\v');
      case 'x':
        return one(in_.hex(2));
      case 'u':
        return one(in_.take("{") ? braced() : in_.hex(4));
      case 'U':
        return one(in_.hex(8));
      case 'b':
        if (use != Use::outside) return one('\b');
        [[fallthrough]];
      case 'B':
        in_.refuse_at(begin, "word boundaries are not supported");
      case 'p':
      case 'P':
        in_.refuse_at(begin, "Unicode properties are not supported");
      default:
        break;
    }
    if (c == '0' && !is_digit(in_.peek())) return one(0);
    if (is_digit(c) || c == 'k') in_.refuse_at(begin, "back-references are not supported");
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) in_.refuse_at(begin, "an unknown escape");
    return one(c);
  }

  static CharSet one(uint32_t c) { return CharSet({{c, c}}); }

  uint32_t braced() {
    int digits = 0;
    while (digits < 8 && in_.peek(static_cast<size_t>(digits)) != '}') ++digits;
    if (digits == 0) in_.refuse("hexadecimal digits");
    const uint32_t c = in_.hex(digits);
    if (!in_.take("}")) in_.refuse("}");
    return c;
  }

  static constexpr char kAnchor[] = "^ and $ are supported at the ends of the whole pattern's alternatives only";

  TextReader in_;
  Grammar& out_;
  Anchors anchors_;
  const WriteChars& write_;
  bool most_;
};

}  // namespace

ExprId read_regex(Grammar& out, const std::string& name, std::string_view pattern, Anchors anchors,
                  const WriteChars& write, Reading reading) {
  return Parser(out, name, pattern, anchors, write, reading).run();
}

}  // namespace kdelta::grammar
