// The cases of schemas as rules of a grammar: a rule for each set of terms, whoever asks for it, so that schemas may
// call themselves.
#pragma once

#include <deque>

#include "kdelta/io/grammar/json_numbers.h"
#include "kdelta/io/grammar/json_rules.h"
#include "kdelta/io/grammar/json_schema.h"
#include "kdelta/io/grammar/schema_values.h"

namespace kdelta::grammar {

class SchemaWriter {
 public:
  // `name` begins the message of every error.
  SchemaWriter(Grammar& out, const std::string& name, const Json& root)
      : g_(out), json_(out), tree_(name, root), cases_(tree_), values_(tree_, cases_) {}

  RuleId run();
  // The root's properties, each by itself.
  RuleId elements(const ArgumentElement& element);

 private:
  struct Member {
    std::string name;
    ExprId text;
    bool required;
  };
  struct Open {
    RuleId rule;
    Terms terms;
  };

  // Values of one type.
  struct Typed {
    std::string_view type;
    ExprId text;
  };

  void define_open();
  RuleId rule_of(const Terms& terms);
  ExprId value(const Terms& terms);
  std::vector<Typed> by_type(const Terms& terms);
  void of_case(const Terms& terms, const Case& c, std::vector<Typed>& out);
  // As a rule of its own, so that repeating it costs a call.
  ExprId as_rule(ExprId e, const std::string& name);
  // Whether a part of the case has one of these keywords.
  static bool has(const Case& c, std::initializer_list<std::string_view> keywords);
  [[noreturn]] void refuse_excluded(const Terms& terms, const char* what) const;

  ExprId string(const Case& c);
  std::string_view pattern_of(const Json& s, const Json& pattern) const;
  // What a case says of strings; `lengths` holds only what minLength and maxLength say, when that is all.
  TextSet text_set(const Case& c, NumberBounds* lengths);
  // A string, in quotes unless it is bare.
  ExprId quoted(ExprId inside) { return bare_ ? inside : json_.quoted(inside); }
  WriteChars writer() {
    return [this](const CharSet& chars) { return bare_ ? g_.chars(chars) : json_.written(chars); };
  }

  ExprId number(const Terms& terms, const Case& c);
  NumberBounds bounds(const Case& c) const;
  int64_t divisor(const Case& c) const;

  ExprId array(const Case& c);
  ExprId different_items(const Json& s, const Terms& items, int64_t least, int64_t most);
  std::vector<Json> finite_values(const Terms& terms, bool* known);

  // schema_object.cc
  struct Counts;
  ExprId object(const Case& c);
  std::vector<std::string> names_of(const Case& c, std::vector<std::string>* required) const;
  ExprId other_members(const Case& c, const std::vector<std::string>& names, const Terms& name_terms);
  ExprId in_order(const std::vector<Member>& members, ExprId more);
  ExprId counted(const Case& c, const std::vector<Member>& members, ExprId more);

  Grammar& g_;
  JsonRules json_;
  SchemaTree tree_;
  SchemaCases cases_;
  SchemaValues values_;
  std::map<Terms, RuleId> rules_;
  std::deque<Open> open_;
  bool bare_ = false;  // strings of the values that are being written are bare text
};

}  // namespace kdelta::grammar
