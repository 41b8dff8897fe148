// The rules of JSON texts. What a text may be, beyond what RFC 8259 says, so that answers stay short and every reader
// takes them: between the tokens of arrays and objects, where json.dumps puts white space, stands nothing, one space,
// or a line feed with at most kMostIndent spaces or tabs; none in front and behind. Whole numbers have at most 19
// digits, fractions 20, exponents 2. \u escapes name no half of a surrogate pair.
#pragma once

#include "kdelta/io/grammar/grammar.h"
#include "kdelta/io/json.h"

namespace kdelta::grammar {

inline constexpr int64_t kMostIndent = 40;

class JsonRules {
 public:
  explicit JsonRules(Grammar& g) : g_(g) {}

  // Any value of a kind; each is one rule, made when it is first asked for.
  ExprId value() { return once(value_, "value", &JsonRules::make_value); }
  ExprId object() { return once(object_, "object", &JsonRules::make_object); }
  ExprId array() { return once(array_, "array", &JsonRules::make_array); }
  ExprId string() { return once(string_, "string", &JsonRules::make_string); }
  ExprId number() { return once(number_, "number", &JsonRules::make_number); }
  ExprId integer() { return once(integer_, "integer", &JsonRules::make_integer); }
  ExprId boolean() { return g_.strings({"true", "false"}); }

  ExprId space() { return once(space_, "space", &JsonRules::make_space); }
  // ", " between items and ": " behind keys.
  ExprId comma() { return g_.sequence({g_.literal(","), space()}); }
  ExprId colon() { return g_.sequence({g_.literal(":"), space()}); }
  // Braces or brackets around what is inside.
  ExprId enclosed(const char* open, ExprId inside, const char* close);

  // One character of a string, however it is spelled.
  ExprId character() { return once(character_, "char", &JsonRules::make_character); }
  // One of these characters as json.dumps writes it: by itself, or the short escape where it must be escaped.
  ExprId written(const CharSet& set);
  ExprId quoted(ExprId inside) { return g_.sequence({g_.literal("\""), inside, g_.literal("\"")}); }
  // This value and no other: strings and numbers as json.dumps writes them, members in this order.
  ExprId constant(const Json& value);
  // A string as json.dumps writes it that is none of these.
  ExprId other_than(const std::vector<std::string>& names);

 private:
  ExprId once(RuleId& rule, const char* name, ExprId (JsonRules::*make)());
  ExprId make_value();
  ExprId make_object();
  ExprId make_array();
  ExprId make_string();
  ExprId make_number();
  ExprId make_integer();
  ExprId make_space();
  ExprId make_character();
  ExprId free_text();

  Grammar& g_;
  RuleId value_ = -1, object_ = -1, array_ = -1, string_ = -1, number_ = -1, integer_ = -1, space_ = -1,
         character_ = -1, free_text_ = -1;
};

}  // namespace kdelta::grammar
