// Objects: their members in order, and which of them may or must be there together.
#include <algorithm>
#include <set>
#include <unordered_set>

#include "kdelta/core/check.h"
#include "kdelta/io/grammar/schema_writer.h"

namespace kdelta::grammar {
namespace {

constexpr size_t kMostPatterns = 5;     // of the names of one object's properties
constexpr size_t kMostCounts = 20'000;  // states of members that are counted or depend on each other

}  // namespace

// Named members in the order in which schemas name them: properties first, then what is only spoken of elsewhere.
std::vector<std::string> SchemaWriter::names_of(const Case& c, std::vector<std::string>* required) const {
  std::vector<std::string> names;
  std::unordered_set<std::string> seen, needed;
  const auto name = [&](std::vector<std::string>& in, const std::string& n) {
    if ((&in == &names ? seen : needed).insert(n).second) in.push_back(n);
  };
  c.each("properties", [&](const Json&, const Json& all) {
    if (all.kind() != Json::Kind::object) return;
    for (const JsonMember& m : all.object()) name(names, m.key);
  });
  c.each("required", [&](const Json& s, const Json& list) {
    for (const std::string& n : tree_.names(list, below(tree_.path(s), "required"))) {
      name(names, n);
      name(*required, n);
    }
  });
  c.each("dependentRequired", [&](const Json& s, const Json& all) {
    const std::string place = below(tree_.path(s), "dependentRequired");
    if (all.kind() != Json::Kind::object) tree_.refuse(place, describe(all) + ", expected an object");
    for (const JsonMember& m : all.object()) {
      name(names, m.key);
      for (const std::string& n : tree_.names(m.value, below(place, m.key))) name(names, n);
    }
  });
  return names;
}

ExprId SchemaWriter::object(const Case& c) {
  if (!has(c, {"properties", "required", "additionalProperties", "patternProperties", "propertyNames",
               "unevaluatedProperties", "minProperties", "maxProperties", "dependentRequired"}))
    return json_.object();
  Terms name_terms;
  c.each("propertyNames", [&](const Json& s, const Json&) { cases_.add(name_terms, tree_.part(s, "propertyNames")); });
  std::vector<std::string> required;
  const std::vector<std::string> names = names_of(c, &required);
  std::vector<Member> members;
  const std::unordered_set<std::string> all_required(required.begin(), required.end());
  for (const std::string& name : names) {
    const bool needed = all_required.contains(name);
    const Terms terms = cases_.member(c, name);
    if (values_.is_valid(Json(name), name_terms) && !cases_.is_none(terms))
      members.push_back({name, g_.sequence({json_.constant(name), json_.colon(), value(terms)}), needed});
    else if (needed)
      return g_.choice({});
  }
  const ExprId more = other_members(c, names, name_terms);
  const bool counts = has(c, {"minProperties", "maxProperties", "dependentRequired"});
  return json_.enclosed("{", counts ? counted(c, members, more) : in_order(members, more), "}");
}

// Members of other names, by which patterns these match; -1 when there are none.
ExprId SchemaWriter::other_members(const Case& c, const std::vector<std::string>& names, const Terms& name_terms) {
  std::vector<std::string> patterns;
  std::string place;
  for (const Case::Part& p : c.parts)
    for (const JsonMember& m : tree_.named(*p.schema, "patternProperties")) {
      if (std::ranges::find(patterns, m.key) == patterns.end()) patterns.push_back(m.key);
      place = below(tree_.path(*p.schema), "patternProperties");
      if (patterns.size() > kMostPatterns)
        tree_.refuse(place, str("more than ", kMostPatterns, " patterns for the properties of one object"));
    }
  c.each("propertyNames", [&](const Json& s, const Json&) { place = below(tree_.path(s), "propertyNames"); });
  // The names that may be, before patterns: any, or by each case of propertyNames.
  std::vector<TextSet> allowed;
  if (name_terms.empty()) {
    allowed.emplace_back();
  } else {
    for (const Case& of_name : cases_.of(name_terms)) {
      if ((of_name.types & kString) == 0) continue;
      TextSet& set = allowed.emplace_back();
      if (!of_name.values) {
        set = text_set(of_name, nullptr);
        continue;
      }
      std::vector<std::string> texts;
      for (const Json& v : *of_name.values)
        if (v.kind() == Json::Kind::string && values_.is_valid(v, name_terms)) texts.push_back(v.string());
      set.among(texts);
    }
  }
  std::vector<ExprId> all;
  for (size_t matched = 0; matched < size_t{1} << patterns.size(); ++matched) {
    const auto matches = [&](const std::string& text) {
      return (matched >> (std::ranges::find(patterns, text) - patterns.begin()) & 1) != 0;
    };
    const Terms terms = cases_.other_member(c, matches);
    if (cases_.is_none(terms)) continue;
    std::vector<ExprId> keys;
    for (TextSet set : allowed) {
      for (const std::string& text : patterns) {
        const SchemaCases::Pattern& p = cases_.pattern(text, place);
        set.add(matches(text) ? p.match : p.rest);
      }
      if (set.all()) {
        keys.push_back(json_.other_than(names));
        continue;
      }
      if (!names.empty()) set.among(names, true);
      keys.push_back(json_.quoted(
          set.write(g_, tree_.name() + ": " + place, [this](const CharSet& chars) { return json_.written(chars); })));
    }
    all.push_back(g_.sequence({g_.choice(std::move(keys)), json_.colon(), value(terms)}));
  }
  return all.empty() ? -1 : as_rule(g_.choice(std::move(all)), "other members");
}

// Behind a member every further one brings its comma; the first that is there has none.
ExprId SchemaWriter::in_order(const std::vector<Member>& members, ExprId more) {
  const ExprId others = more < 0 ? g_.empty() : g_.repeat(g_.sequence({json_.comma(), more}), 0, kNoEnd);
  ExprId first = more < 0 ? g_.empty() : g_.optional(g_.sequence({more, others}));
  const auto needed = std::ranges::find(members, true, &Member::required);
  // Members that may be first: all up to the first that is required. What follows each is a rule, said once.
  const auto leading = std::min<size_t>(members.size(), static_cast<size_t>(needed - members.begin()) + 1);
  ExprId tail = others;
  for (size_t i = members.size(); i-- > 0;) {
    const Member& m = members[i];
    if (i < leading) {
      const ExprId begin = g_.sequence({m.text, tail});
      first = m.required ? begin : g_.choice({begin, first});
      if (i > 0) first = as_rule(first, "members");
    }
    const ExprId with_comma = g_.sequence({json_.comma(), m.text});
    tail = g_.sequence({m.required ? with_comma : g_.optional(with_comma), tail});
    if (i > 0) tail = as_rule(tail, "members");
  }
  return first;
}

// What has been decided in front of a member: how many there are, and which later ones must or must not be there.
struct SchemaWriter::Counts {
  size_t at = 0;
  int64_t count = 0;
  std::set<size_t> forced = {}, forbidden = {};
  auto operator<=>(const Counts&) const = default;
};

ExprId SchemaWriter::counted(const Case& c, const std::vector<Member>& members, ExprId more) {
  int64_t least = 0, most = kNoEnd;
  std::string place;
  for (const Case::Part& p : c.parts) {
    least = std::max(least, tree_.count(*p.schema, "minProperties", 0));
    if (const int64_t n = tree_.count(*p.schema, "maxProperties", kNoEnd); n != kNoEnd)
      most = most == kNoEnd ? n : std::min(most, n);
    for (const char* key : {"minProperties", "maxProperties", "dependentRequired"})
      if (p.schema->find(key) != nullptr) place = below(tree_.path(*p.schema), key);
  }
  std::vector<std::vector<size_t>> needs(members.size()), needed_by(members.size());
  std::set<size_t> forced, forbidden;
  const auto index = [&](const std::string& name) {
    return static_cast<size_t>(std::ranges::find(members, name, &Member::name) - members.begin());
  };
  c.each("dependentRequired", [&](const Json& s, const Json& all) {
    for (const JsonMember& m : all.object())
      for (const std::string& n : tree_.names(m.value, below(tree_.path(s), "dependentRequired"))) {
        const size_t who = index(m.key), what = index(n);
        if (who == members.size()) continue;
        if (what == members.size()) {
          forbidden.insert(who);
        } else {
          needs[who].push_back(what);
          needed_by[what].push_back(who);
        }
      }
  });
  for (size_t i = 0; i < members.size(); ++i)
    if (members[i].required) forced.insert(i);
  // Above it every count is the same.
  const int64_t enough = std::max<int64_t>({least, most == kNoEnd ? 0 : most + 1, 1});
  std::map<Counts, RuleId> rules;
  std::vector<std::pair<Counts, RuleId>> open;
  const auto state = [&](Counts s) {
    s.count = std::min(s.count, enough);
    const auto [known, added] = rules.try_emplace(s, -1);
    if (added) {
      if (rules.size() > kMostCounts)
        tree_.refuse(place, str("more than ", kMostCounts, " ways in which the properties depend on each other"));
      known->second = g_.rule("members");
      open.emplace_back(s, known->second);
    }
    return g_.call(known->second);
  };
  const ExprId start = state({.forced = forced, .forbidden = forbidden});
  while (!open.empty()) {
    const auto [s, rule] = open.back();
    open.pop_back();
    std::vector<ExprId> all;
    if (s.at == members.size()) {
      const int64_t missing = std::max<int64_t>(least - s.count, 0);
      const int64_t left = most == kNoEnd ? kNoEnd : most - s.count;
      if (missing > 1 && more >= 0)
        tree_.refuse(place,
                     "more than one property without a name of its own is needed, and nothing keeps their names apart");
      if (missing == 0) all.push_back(g_.empty());
      if (more >= 0 && missing <= 1 && (most == kNoEnd || left > 0)) {
        const ExprId further = g_.repeat(g_.sequence({json_.comma(), more}), 0, left == kNoEnd ? left : left - 1);
        all.push_back(g_.sequence({s.count > 0 ? g_.sequence({json_.comma(), more}) : more, further}));
      }
      g_.define(rule, g_.choice(std::move(all)));
      continue;
    }
    Counts next = s;
    ++next.at;
    next.forced.erase(s.at);
    next.forbidden.erase(s.at);
    if (!s.forced.contains(s.at)) {
      Counts without = next;
      for (const size_t who : needed_by[s.at])
        if (who > s.at) without.forbidden.insert(who);
      all.push_back(state(std::move(without)));
    }
    if (!s.forbidden.contains(s.at) && (most == kNoEnd || s.count < most)) {
      ++next.count;
      for (const size_t what : needs[s.at])
        if (what > s.at) next.forced.insert(what);
      const ExprId text = members[s.at].text;
      all.push_back(g_.sequence({s.count > 0 ? g_.sequence({json_.comma(), text}) : text, state(std::move(next))}));
    }
    g_.define(rule, g_.choice(std::move(all)));
  }
  return start;
}

}  // namespace kdelta::grammar
