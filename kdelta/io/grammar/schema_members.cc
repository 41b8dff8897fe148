// What cases say of the members of objects, and whether they can hold at all.
#include <algorithm>
#include <cmath>

#include "kdelta/core/check.h"
#include "kdelta/io/grammar/schema_cases.h"

namespace kdelta::grammar {
namespace {

constexpr int kMostDeep = 4;  // members looked into, one in the other, for what excludes two schemas

}  // namespace

bool SchemaCases::is_none(const Terms& terms, int depth) {
  if (terms.empty() || depth > kMostDeep) return false;
  return std::ranges::all_of(of(terms), [&](const Case& c) { return is_empty(c, depth); });
}

bool SchemaCases::is_empty(const Case& c, int depth) {
  if (c.values && std::ranges::all_of(*c.values, [&](const Json& v) {
        return std::ranges::any_of(c.excluded, [&](const Json& e) { return is_same(e, v); });
      }))
    return true;
  if (c.types == kObject) {
    for (const Case::Part& p : c.parts)
      if (const Json* required = p.schema->find("required"))
        for (const std::string& name : tree_.names(*required, below(tree_.path(*p.schema), "required")))
          if (is_none(member(c, name), depth + 1)) return true;
  }
  if ((c.types & ~(kWhole | kFraction)) != 0) return false;
  double low = -INFINITY, high = INFINITY;
  bool open = false;
  const auto bound = [&](const char* key, double& to, bool upper, bool exclusive) {
    c.each(key, [&](const Json&, const Json& v) {
      if (v.kind() != Json::Kind::integer && v.kind() != Json::Kind::real) return;
      if (upper ? v.number() < to : v.number() > to) to = v.number();
      open = open || exclusive;
    });
  };
  bound("minimum", low, false, false);
  bound("maximum", high, true, false);
  const double closed_low = low, closed_high = high;
  bound("exclusiveMinimum", low, false, true);
  bound("exclusiveMaximum", high, true, true);
  return closed_low > closed_high || low > high || (open && low == high);
}

const SchemaCases::Pattern& SchemaCases::pattern(const std::string& text, const std::string& path) {
  const auto known = patterns_.find(text);
  if (known != patterns_.end()) return known->second;
  Pattern p;
  const std::string name = tree_.name() + ": " + path;
  p.match.match(name, text, Anchors::search);
  p.rest.match(name, text, Anchors::search, true);
  return patterns_.emplace(text, std::move(p)).first->second;
}

bool SchemaCases::is_within(int scope, int outer) const {
  while (scope > outer) scope = outer_scope_[static_cast<size_t>(scope)];
  return scope == outer;
}

// additionalProperties speaks of what its own schema does not name, unevaluatedProperties of what no schema within its
// own one did.
Terms SchemaCases::member(const Case& c, const std::string* name,
                          const std::function<Match(const std::string&)>& match) {
  static const Json never(false);
  Terms out;
  const auto says = [&](const Json& s, bool collect) {
    bool said = false;
    if (name != nullptr)
      if (const Json* own = tree_.named(s, "properties", *name)) {
        said = true;
        if (collect) add(out, *own);
      }
    for (const JsonMember& m : tree_.named(s, "patternProperties")) {
      (void)pattern(m.key, below(tree_.path(s), "patternProperties"));
      const Match found = match(m.key);
      if (found == Match::no) continue;
      said = true;
      if (collect) add(out, found == Match::yes ? m.value : tree_.at(never, tree_.path(s)));
    }
    return said;
  };
  for (const Case::Part& p : c.parts)
    if (!says(*p.schema, true) && p.schema->find("additionalProperties") != nullptr)
      add(out, tree_.part(*p.schema, "additionalProperties"));
  for (const Case::Part& u : c.parts) {
    if (u.schema->find("unevaluatedProperties") == nullptr) continue;
    const bool known = std::ranges::any_of(c.parts, [&](const Case::Part& p) {
      if (p.scope < 0 || !is_within(p.scope, u.scope)) return false;
      return says(*p.schema, false) || p.schema->find("additionalProperties") != nullptr ||
             (p.schema != u.schema && p.schema->find("unevaluatedProperties") != nullptr);
    });
    if (!known) add(out, tree_.part(*u.schema, "unevaluatedProperties"));
  }
  return out;
}

Terms SchemaCases::member(const Case& c, const std::string& name) {
  return member(c, &name, [&](const std::string& text) {
    const Pattern& p = patterns_.at(text);
    return p.match.contains(name) ? Match::yes : p.rest.contains(name) ? Match::no : Match::differs;
  });
}

Terms SchemaCases::other_member(const Case& c, const std::function<bool(const std::string&)>& matches) {
  return member(c, nullptr, [&](const std::string& text) { return matches(text) ? Match::yes : Match::no; });
}

}  // namespace kdelta::grammar
