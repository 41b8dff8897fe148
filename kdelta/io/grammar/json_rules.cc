#include "kdelta/io/grammar/json_rules.h"

#include <map>

#include "kdelta/core/check.h"
#include "kdelta/io/grammar/json_numbers.h"
#include "kdelta/io/unicode.h"

namespace kdelta::grammar {
namespace {

const CharSet& unescaped() {
  static const CharSet set = CharSet({{0x20, kLastChar}}) - CharSet({{'"', '"'}, {'\\', '\\'}});
  return set;
}

}  // namespace

ExprId JsonRules::once(RuleId& rule, const char* name, ExprId (JsonRules::*make)()) {
  if (rule < 0) {
    rule = g_.rule(str("JSON ", name));
    g_.define(rule, (this->*make)());
  }
  return g_.call(rule);
}

ExprId JsonRules::make_space() {
  const ExprId indent = g_.repeat(g_.choice({g_.bytes(' ', ' '), g_.bytes('\t', '\t')}), 0, kMostIndent);
  return g_.choice({g_.empty(), g_.bytes(' ', ' '), g_.sequence({g_.bytes('\n', '\n'), indent})});
}

ExprId JsonRules::enclosed(const char* open, ExprId inside, const char* close) {
  return g_.sequence({g_.literal(open), space(), inside, space(), g_.literal(close)});
}

ExprId JsonRules::make_value() {
  return g_.choice(
      {object(), array(), string(), number(), g_.literal("true"), g_.literal("false"), g_.literal("null")});
}

ExprId JsonRules::make_object() {
  const ExprId member = g_.sequence({string(), colon(), value()});
  const ExprId more = g_.repeat(g_.sequence({comma(), member}), 0, kNoEnd);
  return enclosed("{", g_.optional(g_.sequence({member, more})), "}");
}

ExprId JsonRules::make_array() {
  const ExprId more = g_.repeat(g_.sequence({comma(), value()}), 0, kNoEnd);
  return enclosed("[", g_.optional(g_.sequence({value(), more})), "]");
}

ExprId JsonRules::make_string() {
  return quoted(g_.repeat(make_character(), 0, kNoEnd));
}

ExprId JsonRules::make_character() {
  const auto hex = [&](const char* low) {
    std::vector<ExprId> all;
    for (const char* c = low; *c != 0; ++c) all.push_back(g_.bytes(static_cast<uint8_t>(*c), static_cast<uint8_t>(*c)));
    return g_.choice(std::move(all));
  };
  const ExprId any = g_.choice({g_.bytes('0', '9'), g_.bytes('a', 'f'), g_.bytes('A', 'F')});
  const ExprId d = hex("dD"), no_d = g_.choice({g_.bytes('0', '9'), hex("abcefABCEF")});
  const ExprId high = hex("89abAB"), low = hex("cdefCDEF");
  const ExprId single = g_.choice({g_.sequence({no_d, any, any, any}), g_.sequence({d, g_.bytes('0', '7'), any, any})});
  const ExprId pair = g_.sequence({d, high, any, any, g_.literal("\\u"), d, low, any, any});
  return g_.choice(
      {g_.chars(unescaped()),
       g_.sequence({g_.literal("\\"),
                    g_.choice({hex("\"\\/bfnrt"), g_.sequence({g_.literal("u"), g_.choice({single, pair})})})})});
}

ExprId JsonRules::make_number() {
  const ExprId digit = g_.bytes('0', '9');
  const ExprId sign = g_.choice({g_.bytes('+', '+'), g_.bytes('-', '-')});
  return g_.sequence({make_integer(), g_.optional(g_.sequence({g_.literal("."), g_.repeat(digit, 1, kMostFraction)})),
                      g_.optional(g_.sequence({g_.choice({g_.bytes('e', 'e'), g_.bytes('E', 'E')}), g_.optional(sign),
                                               g_.repeat(digit, 1, 2)}))});
}

ExprId JsonRules::make_integer() {
  const ExprId digit = g_.bytes('0', '9');
  return g_.sequence(
      {g_.optional(g_.literal("-")),
       g_.choice({g_.bytes('0', '0'), g_.sequence({g_.bytes('1', '9'), g_.repeat(digit, 0, kMostDigits - 1)})})});
}

ExprId JsonRules::written(const CharSet& set) {
  std::vector<ExprId> all;
  const CharSet plain = set & unescaped();
  if (!plain.empty()) all.push_back(g_.chars(plain));
  const CharSet escaped = set - unescaped();
  for (const CharRange r : escaped.ranges())
    for (uint32_t c = r.low; c <= r.high; ++c) {
      std::string text, raw;
      append_utf8(raw, c);
      append_json_string(text, raw);
      all.push_back(g_.literal(std::string_view(text).substr(1, text.size() - 2)));
    }
  return g_.choice(std::move(all));
}

ExprId JsonRules::constant(const Json& value) {
  std::vector<ExprId> parts;
  if (value.kind() == Json::Kind::array) {
    for (const Json& item : value.array()) {
      if (!parts.empty()) parts.push_back(comma());
      parts.push_back(constant(item));
    }
    return enclosed("[", g_.sequence(std::move(parts)), "]");
  }
  if (value.kind() == Json::Kind::object) {
    for (const JsonMember& m : value.object()) {
      if (!parts.empty()) parts.push_back(comma());
      parts.push_back(constant(m.key));
      parts.push_back(colon());
      parts.push_back(constant(m.value));
    }
    return enclosed("{", g_.sequence(std::move(parts)), "}");
  }
  return g_.literal(json_text(value));
}

ExprId JsonRules::free_text() {
  if (free_text_ < 0) {
    free_text_ = g_.rule("JSON key");
    g_.define(free_text_, g_.repeat(written(CharSet::all()), 0, kNoEnd));
  }
  return g_.call(free_text_);
}

// A tree of the names' characters, a rule for each beginning: it goes on along a name, leaves the names for good, or,
// where no name ends, ends.
ExprId JsonRules::other_than(const std::vector<std::string>& names) {
  struct Node {
    std::map<uint32_t, size_t> next;
    bool is_name = false;
    RuleId rule = -1;
  };
  std::vector<Node> nodes(1);
  for (const std::string& name : names) {
    size_t at = 0;
    for (size_t i = 0; i < name.size();) {
      const Char c = decode_char(name, i);
      i += static_cast<size_t>(c.bytes);
      const auto [it, added] = nodes[at].next.try_emplace(c.code, nodes.size());
      at = it->second;
      if (added) nodes.emplace_back();
    }
    nodes[at].is_name = true;
  }
  for (Node& n : nodes) n.rule = g_.rule("JSON key");
  for (const Node& n : nodes) {
    std::vector<ExprId> all;
    std::vector<CharRange> taken;
    if (!n.is_name) all.push_back(g_.empty());
    for (const auto& [code, next] : n.next) {
      all.push_back(g_.sequence({written(CharSet({{code, code}})), g_.call(nodes[next].rule)}));
      taken.push_back({code, code});
    }
    all.push_back(g_.sequence({written(CharSet(std::move(taken)).complement()), free_text()}));
    g_.define(n.rule, g_.choice(std::move(all)));
  }
  return quoted(g_.call(nodes[0].rule));
}

}  // namespace kdelta::grammar
