// Schemas that hold together, as alternatives in which nothing is left that combines schemas: $ref, allOf, anyOf,
// oneOf, not, if and the like are resolved, so that each alternative says of every type what its values are. Exact: a
// value is valid under all terms if and only if it is valid under one of the cases.
#pragma once

#include <compare>
#include <functional>
#include <map>
#include <optional>

#include "kdelta/io/grammar/schema_tree.h"
#include "kdelta/io/grammar/text_set.h"

namespace kdelta::grammar {

// A schema that holds, or does not.
struct Term {
  const Json* schema;
  bool negated = false;
  auto operator<=>(const Term&) const = default;
};
// All of them together. In an order of its own and without what always holds: equal terms are equal schemas.
using Terms = std::vector<Term>;

// A number is whole or has a fraction.
inline constexpr unsigned kNull = 1, kBoolean = 2, kString = 4, kWhole = 8, kFraction = 16, kArray = 32, kObject = 64,
                          kAllTypes = 127;

unsigned type_of(const Json& value);
// As JSON Schema compares: 1 and 1.0 are one number, members have no order.
bool is_same(const Json& a, const Json& b);

struct Case {
  unsigned types = kAllTypes;
  std::optional<Json::Array> values;  // no others; which of them the parts allow is left to SchemaValues
  Json::Array excluded;
  // Schemas whose other keywords all hold.
  struct Part {
    const Json* schema;
    int scope;
  };
  std::vector<Part> parts;

  // Of every part that has the keyword.
  template <class F>
  void each(std::string_view keyword, const F& f) const {
    for (const Part& p : parts)
      if (const Json* value = p.schema->find(keyword)) f(*p.schema, *value);
  }
};

class SchemaCases {
 public:
  explicit SchemaCases(SchemaTree& tree) : tree_(tree) {}

  // Throws for a schema that is none, or that refers to itself with no value in between.
  void add(Terms& to, const Json& schema, bool negated = false);
  // Throws naming the place and keyword that it cannot say, or that there are too many cases.
  std::vector<Case> of(const Terms& terms);
  // Known to hold of no value.
  bool is_none(const Terms& terms, int depth = 0);

  // A pattern of property names: the names that every engine finds it in, and those that none does.
  struct Pattern {
    TextSet match, rest;
  };
  const Pattern& pattern(const std::string& text, const std::string& path);
  // What the value of a member is, by its name.
  Terms member(const Case& c, const std::string& name);
  // By which patterns its name matches, of a name that nothing names.
  Terms other_member(const Case& c, const std::function<bool(const std::string&)>& matches);

 private:
  struct Node {
    const Json* schema;
    bool negated;
    int scope, parent;
  };
  using Option = std::vector<Node>;
  struct Work {
    Case found;
    std::vector<Node> todo;
    std::vector<std::vector<Option>> choices;
    std::vector<std::tuple<const Json*, bool, int>> seen;
  };

  enum class Match : uint8_t { no, yes, differs };
  Terms member(const Case& c, const std::string* name, const std::function<Match(const std::string&)>& match);
  bool is_within(int scope, int outer) const;

  void run(Work work, std::vector<Case>& out);
  void take(Work& w, const Node& n);
  void hold(Work& w, const Json& s, int scope, int self);
  void any_of(Work& w, const Json& s, int scope, int self);
  void one_of(Work& w, const Json& s, int scope, int self);
  void condition(Work& w, const Json& s, int scope, int self);
  void deny(Work& w, const Json& s, int self);
  std::optional<Json> opposite(const Json& s, const JsonMember& keyword);
  const std::vector<const Json*>& opposites(const Json& s);
  const Json& reference(const Json& s);
  bool is_empty(const Case& c, int depth);

  void check_keywords(const Json& s) const;
  unsigned types_of(const Json& type, const std::string& path) const;

  SchemaTree& tree_;
  std::vector<Node> chain_;           // of the terms being resolved; a node's parent is one of them
  std::vector<int> outer_scope_{-1};  // by scope; 0 is everything, -1 what does not count
  std::map<const Json*, std::vector<std::vector<bool>>> exclude_;  // pairs of the schemas of a oneOf
  std::map<const Json*, std::vector<const Json*>> opposites_;
  std::map<std::string, Pattern> patterns_;
  int64_t steps_ = 0;
};

}  // namespace kdelta::grammar
