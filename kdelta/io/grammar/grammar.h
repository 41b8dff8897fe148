// A context-free grammar over bytes and special tokens, as the readers (gbnf.h, regex.h, json_schema.h) build it and
// program.h compiles it: rules, each an expression over the others.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "kdelta/io/grammar/char_set.h"

namespace kdelta::grammar {

using ExprId = int32_t;
using RuleId = int32_t;

// What a hostile grammar may cost before it is refused. An expression that is deeper would be deep recursion for
// whoever walks it.
inline constexpr int32_t kMostExprs = 1 << 20, kMostRules = 1 << 17, kMostDepth = 500;
inline constexpr int64_t kMostRepeats = 1'000'000;
inline constexpr int64_t kNoEnd = -1;  // Grammar::repeat

struct Expr {
  enum class Kind : uint8_t {
    bytes,     // one byte, low..high
    literal,   // text
    strings,   // one of texts
    token,     // the special token `id`, which no bytes spell
    call,      // rule `id`
    sequence,  // parts in turn; none: the empty text
    choice,    // one of parts; none: nothing matches
    repeat     // parts[0], least..most times
  };
  Kind kind = Kind::sequence;
  uint8_t low = 0, high = 0;
  int32_t id = 0;
  int32_t depth = 1;
  int64_t least = 0, most = kNoEnd;
  std::string text = {};
  std::vector<std::string> texts = {};
  std::vector<ExprId> parts = {};
};

class Grammar {
 public:
  // `name` begins the message of every error: "grammar", "regex", "json_schema".
  explicit Grammar(std::string name) : name_(std::move(name)) {}

  ExprId empty() { return sequence({}); }
  ExprId bytes(uint8_t low, uint8_t high);
  ExprId literal(std::string_view text);
  // One character of the set, in UTF-8.
  ExprId chars(const CharSet& set);
  // One of the texts: as cheap to match as a single one, however many there are.
  ExprId strings(std::vector<std::string> texts);
  ExprId token(int32_t id);
  ExprId call(RuleId rule);
  ExprId sequence(std::vector<ExprId> parts);
  ExprId choice(std::vector<ExprId> parts);
  ExprId optional(ExprId part) { return repeat(part, 0, 1); }
  // Throws Error(invalid_argument) above kMostRepeats, or when most < least.
  ExprId repeat(ExprId part, int64_t least, int64_t most);

  // A rule may be called before it is defined. Rule 0, the first, is the root.
  RuleId rule(std::string name);
  void define(RuleId rule, ExprId body);
  bool defined(RuleId rule) const { return rules_[static_cast<size_t>(rule)].body >= 0; }

  const std::string& name() const { return name_; }
  const std::string& rule_name(RuleId rule) const { return rules_[static_cast<size_t>(rule)].name; }
  int32_t rules() const { return static_cast<int32_t>(rules_.size()); }
  ExprId body(RuleId rule) const { return rules_[static_cast<size_t>(rule)].body; }
  const Expr& expr(ExprId id) const { return exprs_[static_cast<size_t>(id)]; }

 private:
  struct Rule {
    std::string name;
    ExprId body = -1;
  };
  ExprId add(Expr expr);

  std::string name_;
  std::vector<Expr> exprs_;
  std::vector<Rule> rules_;
};

}  // namespace kdelta::grammar
