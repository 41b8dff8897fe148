#include "kdelta/io/grammar/gbnf.h"

#include <algorithm>

#include "kdelta/core/error.h"
#include "kdelta/io/grammar/text_reader.h"

namespace kdelta::grammar {
namespace {

constexpr int kMostGroups = 200;  // one in the other

bool is_name(uint32_t c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

class Parser {
 public:
  Parser(Grammar& out, std::string_view text) : in_(out.name(), text), out_(out) {}

  RuleId run() {
    const RuleId root = rule_of("root");
    skip_space(true);
    if (in_.at_end()) in_.refuse("no rules", "root ::= ...");
    while (!in_.at_end()) {
      const size_t begin = in_.position();
      const std::string name = read_name();
      const RuleId rule = rule_of(name);
      if (out_.defined(rule)) in_.refuse_at(begin, "rule '" + name + "' is defined twice");
      skip_space(false);
      if (!in_.take("::=")) in_.refuse("::=");
      skip_space(true);
      out_.define(rule, alternatives(0));
      if (!in_.at_end() && !at_line_end()) in_.refuse("the end of the rule");
      skip_space(true);
    }
    if (!out_.defined(root)) in_.refuse_at(0, "no rule 'root'");
    for (const auto& [name, use] : used_)
      if (!out_.defined(use.rule)) in_.refuse_at(use.position, "rule '" + name + "' is not defined");
    return root;
  }

 private:
  struct Use {
    RuleId rule;
    size_t position;  // where it is named first
  };

  bool at_line_end() const { return in_.peek() == '\n' || in_.peek() == '\r'; }

  void skip_space(bool lines) {
    while (!in_.at_end()) {
      const uint32_t c = in_.peek();
      if (c == '#')
        while (!in_.at_end() && !at_line_end()) in_.next();
      else if (c == ' ' || c == '\t' || (lines && at_line_end()))
        in_.next();
      else
        return;
    }
  }

  std::string read_name() {
    std::string name;
    while (!in_.at_end() && is_name(in_.peek())) name += static_cast<char>(in_.next());
    if (name.empty()) in_.refuse("the name of a rule");
    return name;
  }

  RuleId rule_of(const std::string& name) {
    const auto [it, added] = used_.try_emplace(name, Use{0, in_.position() - std::min(name.size(), in_.position())});
    if (added) it->second.rule = out_.rule(name);
    return it->second.rule;
  }

  ExprId alternatives(int groups) {
    std::vector<ExprId> all{sequence(groups)};
    while (in_.take("|")) {
      skip_space(true);
      all.push_back(sequence(groups));
    }
    return out_.choice(std::move(all));
  }

  ExprId sequence(int groups) {
    std::vector<ExprId> parts;
    for (;;) {
      skip_space(groups > 0);
      if (in_.at_end() || in_.peek() == '|' || in_.peek() == ')' || at_line_end()) break;
      parts.push_back(repeated(element(groups)));
    }
    return out_.sequence(std::move(parts));
  }

  ExprId element(int groups) {
    const size_t begin = in_.position();
    if (in_.take("\"")) return quoted();
    if (in_.take("[")) return out_.chars(char_class());
    if (in_.take(".")) return out_.chars(CharSet::all());
    if (in_.take("(")) {
      if (groups == kMostGroups) in_.refuse_at(begin, "more than 200 groups, one in the other");
      skip_space(true);
      const ExprId inner = alternatives(groups + 1);
      if (!in_.take(")")) in_.refuse(")");
      return inner;
    }
    if (!is_name(in_.peek())) in_.refuse("a text in quotes, [, ., ( or the name of a rule");
    return out_.call(rule_of(read_name()));
  }

  ExprId repeated(ExprId e) {
    for (;;) {
      skip_space(false);
      if (in_.take("*")) {
        e = out_.repeat(e, 0, kNoEnd);
      } else if (in_.take("+")) {
        e = out_.repeat(e, 1, kNoEnd);
      } else if (in_.take("?")) {
        e = out_.optional(e);
      } else if (in_.take("{")) {
        skip_space(false);
        const int64_t least = in_.number();
        int64_t most = least;
        skip_space(false);
        if (in_.take(",")) {
          skip_space(false);
          most = in_.at_end() || in_.peek() == '}' ? kNoEnd : in_.number();
          skip_space(false);
        }
        if (!in_.take("}")) in_.refuse("}");
        e = out_.repeat(e, least, most);
      } else {
        return e;
      }
    }
  }

  ExprId quoted() {
    std::string text;
    while (!in_.take("\"")) {
      if (in_.at_end() || at_line_end()) in_.refuse("\"");
      append_utf8(text, character());
    }
    return out_.literal(text);
  }

  CharSet char_class() {
    const bool others = in_.take("^");
    std::vector<CharRange> ranges;
    while (!in_.take("]")) {
      if (in_.at_end()) in_.refuse("]");
      const size_t begin = in_.position();
      const uint32_t low = character();
      uint32_t high = low;
      if (in_.peek() == '-' && in_.peek(1) != ']') {
        in_.next();
        if (in_.at_end()) in_.refuse("]");
        high = character();
      }
      if (high < low) in_.refuse_at(begin, "a range that ends before it begins");
      ranges.push_back({low, high});
    }
    const CharSet set(std::move(ranges));
    return others ? set.complement() : set;
  }

  uint32_t character() {
    const size_t begin = in_.position();
    const uint32_t c = in_.next();
    if (c != '\\') return c;
    if (in_.at_end()) in_.refuse("what is escaped");
    switch (const uint32_t escaped = in_.next()) {
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case 'x':
        return in_.hex(2);
      case 'u':
        return in_.hex(4);
      case 'U':
        return in_.hex(8);
      case '\\':
      case '"':
      case '[':
      case ']':
      case '-':
      case '^':
        return escaped;
      default:
        in_.refuse_at(begin, "an unknown escape");
    }
  }

  TextReader in_;
  Grammar& out_;
  std::map<std::string, Use> used_;
};

}  // namespace

RuleId read_gbnf(Grammar& out, std::string_view text) {
  return Parser(out, text).run();
}

Grammar parse_gbnf(std::string_view text) {
  Grammar out("grammar");
  (void)read_gbnf(out, text);
  return out;
}

}  // namespace kdelta::grammar
