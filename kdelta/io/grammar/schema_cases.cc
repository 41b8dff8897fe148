#include "kdelta/io/grammar/schema_cases.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "kdelta/core/check.h"
#include "kdelta/io/grammar/grammar.h"

namespace kdelta::grammar {
namespace {

constexpr int64_t kMostSteps = 200'000;  // schemas looked at for one document
constexpr size_t kMostCases = 2000;      // of one set of terms
constexpr size_t kMostSubsets = 6;       // schemas of an anyOf of which any set may hold

constexpr std::string_view kKeywords[] = {
    "$ref", "type", "enum", "const", "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas",
    // of objects
    "properties", "required", "additionalProperties", "patternProperties", "propertyNames", "unevaluatedProperties",
    "minProperties", "maxProperties", "dependentRequired",
    // of arrays
    "items", "prefixItems", "minItems", "maxItems", "uniqueItems",
    // of strings and numbers
    "minLength", "maxLength", "pattern", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
    "multipleOf"};

constexpr std::pair<std::string_view, unsigned> kTypes[] = {
    {"null", kNull},     {"boolean", kBoolean}, {"string", kString}, {"number", kWhole | kFraction},
    {"integer", kWhole}, {"array", kArray},     {"object", kObject}};

}  // namespace

unsigned type_of(const Json& v) {
  switch (v.kind()) {
    case Json::Kind::null:
      return kNull;
    case Json::Kind::boolean:
      return kBoolean;
    case Json::Kind::integer:
      return kWhole;
    case Json::Kind::real:
      return v.number() == std::floor(v.number()) ? kWhole : kFraction;
    case Json::Kind::string:
      return kString;
    case Json::Kind::array:
      return kArray;
    case Json::Kind::object:
      return kObject;
  }
  KDELTA_UNREACHABLE("kind of JSON", v.kind());
}

bool is_same(const Json& a, const Json& b) {
  const auto number = [](const Json& v) { return (type_of(v) & (kWhole | kFraction)) != 0; };
  if (number(a) && number(b)) return a == b || a.number() == b.number();
  if (a.kind() != b.kind()) return false;
  if (a.kind() == Json::Kind::array) return std::ranges::equal(a.array(), b.array(), is_same);
  if (a.kind() != Json::Kind::object) return a == b;
  return a.object().size() == b.object().size() && std::ranges::all_of(a.object(), [&](const JsonMember& m) {
           const Json* other = b.find(m.key);
           return other != nullptr && is_same(m.value, *other);
         });
}

unsigned SchemaCases::types_of(const Json& type, const std::string& path) const {
  unsigned out = 0;
  const auto take = [&](const Json& t) {
    const auto* known = t.kind() == Json::Kind::string
                            ? std::ranges::find(kTypes, t.string(), [](const auto& k) { return k.first; })
                            : std::end(kTypes);
    if (known == std::end(kTypes))
      tree_.refuse(path, describe(t) + ", expected object, array, string, number, integer, boolean or null");
    out |= known->second;
  };
  if (type.kind() == Json::Kind::array)
    std::ranges::for_each(type.array(), take);
  else
    take(type);
  return out;
}

void SchemaCases::check_keywords(const Json& s) const {
  if (tree_.is_made(s)) return;
  for (const JsonMember& m : s.object())
    if (!SchemaTree::is_annotation(m.key) && std::ranges::find(kKeywords, m.key) == std::end(kKeywords))
      tree_.refuse(s, m.key, "this keyword is not supported");
}

const Json& SchemaCases::reference(const Json& s) {
  const Json& ref = *s.find("$ref");
  const std::string place = below(tree_.path(s), "$ref");
  if (ref.kind() != Json::Kind::string) tree_.refuse(place, describe(ref) + ", expected a string");
  return tree_.target(ref.string(), place);
}

void SchemaCases::add(Terms& to, const Json& schema, bool negated) {
  const Json* s = &schema;
  // References that stand alone are what they point to.
  for (std::vector<const Json*> passed;;) {
    if (s->kind() == Json::Kind::boolean && s->boolean() != negated) return;
    if (s->kind() != Json::Kind::object) break;
    check_keywords(*s);
    const auto constraints =
        std::ranges::count_if(s->object(), [](const JsonMember& m) { return !SchemaTree::is_annotation(m.key); });
    if (constraints == 0 && !negated) return;
    if (constraints != 1) break;
    if (std::ranges::find(passed, s) != passed.end())
      tree_.refuse(tree_.path(*s), "refers to itself with no value in between");
    passed.push_back(s);
    if (s->find("$ref") != nullptr) {
      s = &reference(*s);
    } else if (s->find("not") != nullptr) {
      s = &tree_.part(*s, "not");
      negated = !negated;
    } else {
      break;
    }
  }
  if (s->kind() != Json::Kind::object && s->kind() != Json::Kind::boolean)
    tree_.refuse(tree_.path(*s), describe(*s) + ", expected a schema: an object, true or false");
  const Term term{s, negated};
  const auto at = std::ranges::lower_bound(to, term);
  if (at == to.end() || *at != term) to.insert(at, term);
}

std::vector<Case> SchemaCases::of(const Terms& terms) {
  Work w;
  for (const Term& t : terms) w.todo.push_back({t.schema, t.negated, 0, -1});
  std::ranges::reverse(w.todo);
  std::vector<Case> out;
  const size_t chain = chain_.size();
  run(std::move(w), out);
  chain_.resize(chain);
  return out;
}

void SchemaCases::run(Work w, std::vector<Case>& out) {
  while (!w.todo.empty() && w.found.types != 0) {
    const Node n = w.todo.back();
    w.todo.pop_back();
    take(w, n);
  }
  if (w.found.types == 0) return;
  if (w.choices.empty()) {
    if (out.size() == kMostCases)
      tree_.refuse("#", str("more than ", kMostCases, " ways to combine the schemas that hold together"));
    return out.push_back(std::move(w.found));
  }
  const std::vector<Option> options = std::move(w.choices.back());
  w.choices.pop_back();
  for (const Option& o : options) {
    Work next = w;
    next.todo = o;
    std::ranges::reverse(next.todo);
    run(std::move(next), out);
  }
}

void SchemaCases::take(Work& w, const Node& n) {
  const Json& s = *n.schema;
  if (++steps_ > kMostSteps) tree_.refuse(tree_.path(s), str("more than ", kMostSteps, " schemas to combine"));
  if (s.kind() == Json::Kind::boolean) {
    if (s.boolean() == n.negated) w.found.types = 0;
    return;
  }
  if (s.kind() != Json::Kind::object)
    tree_.refuse(tree_.path(s), describe(s) + ", expected a schema: an object, true or false");
  for (int p = n.parent; p >= 0; p = chain_[static_cast<size_t>(p)].parent)
    if (chain_[static_cast<size_t>(p)].schema == &s && chain_[static_cast<size_t>(p)].negated == n.negated)
      tree_.refuse(tree_.path(s), "refers to itself with no value in between");
  const std::tuple<const Json*, bool, int> key{&s, n.negated, n.scope};
  if (std::ranges::find(w.seen, key) != w.seen.end()) return;
  w.seen.push_back(key);
  check_keywords(s);
  chain_.push_back(n);
  const auto self = static_cast<int>(chain_.size()) - 1;
  if (n.negated)
    deny(w, s, self);
  else
    hold(w, s, n.scope, self);
}

void SchemaCases::hold(Work& w, const Json& s, int scope, int self) {
  Case& c = w.found;
  if (s.find("unevaluatedProperties") != nullptr) {
    outer_scope_.push_back(scope);
    scope = static_cast<int>(outer_scope_.size()) - 1;
  }
  if (const Json* type = s.find("type")) c.types &= types_of(*type, below(tree_.path(s), "type"));
  if (const Json* type = s.find("not type")) c.types &= ~types_of(*type, below(tree_.path(s), "type"));
  if (const Json* values = s.find("not enum"))
    c.excluded.insert(c.excluded.end(), values->array().begin(), values->array().end());
  for (const char* key : {"const", "enum"}) {
    const Json* given = s.find(key);
    if (given == nullptr) continue;
    const bool one = std::string_view(key) == "const";
    if (!one && given->kind() != Json::Kind::array) tree_.refuse(s, key, describe(*given) + ", expected an array");
    const Json::Array values = one ? Json::Array{*given} : given->array();
    if (!c.values)
      c.values = values;
    else
      std::erase_if(*c.values, [&](const Json& v) {
        return std::ranges::none_of(values, [&](const Json& other) { return is_same(v, other); });
      });
    std::erase_if(*c.values, [&](const Json& v) { return (type_of(v) & c.types) == 0; });
    unsigned types = 0;
    for (const Json& v : *c.values) types |= type_of(v);
    c.types &= types;
  }
  const auto also = [&](const Json& schema) { w.todo.push_back({&schema, false, scope, self}); };
  if (s.find("allOf") != nullptr) {
    const Json::Array& all = tree_.list(s, "allOf");
    for (size_t i = all.size(); i-- > 0;) also(all[i]);
  }
  if (s.find("$ref") != nullptr) also(reference(s));
  if (s.find("not") != nullptr) w.todo.push_back({&tree_.part(s, "not"), true, -1, self});
  if (s.find("anyOf") != nullptr) any_of(w, s, scope, self);
  if (s.find("oneOf") != nullptr) one_of(w, s, scope, self);
  if (s.find("if") != nullptr) condition(w, s, scope, self);
  for (const JsonMember& m : tree_.named(s, "dependentSchemas")) {
    const Json& without = tree_.keep(Json::Object{{"properties", Json::Object{{m.key, false}}}}, tree_.path(s));
    const Json& with = tree_.keep(Json::Object{{"type", "object"}, {"required", Json::Array{m.key}}}, tree_.path(s));
    w.choices.push_back({{{&without, false, -1, self}}, {{&with, false, -1, self}, {&m.value, false, scope, self}}});
  }
  c.parts.push_back({&s, scope});
}

// Where it is asked which properties were looked at, the schemas that hold beside the first one that does matter too.
void SchemaCases::any_of(Work& w, const Json& s, int scope, int self) {
  const Json::Array& all = tree_.list(s, "anyOf");
  std::vector<Option> options;
  if (scope > 0 && all.size() <= kMostSubsets) {
    for (size_t subset = 1; subset < size_t{1} << all.size(); ++subset) {
      Option& o = options.emplace_back();
      for (size_t i = 0; i < all.size(); ++i)
        if ((subset >> i & 1) != 0) o.push_back({&all[i], false, scope, self});
    }
  } else if (scope > 0) {
    tree_.refuse(s, "anyOf", str("more than ", kMostSubsets, " schemas beside unevaluatedProperties"));
  } else {
    for (const Json& part : all) options.push_back({{&part, false, scope, self}});
  }
  w.choices.push_back(std::move(options));
}

void SchemaCases::one_of(Work& w, const Json& s, int scope, int self) {
  const Json::Array& all = tree_.list(s, "oneOf");
  // While they are being compared what is known to hold of one of them is enough: too many cases, and none left out.
  using Pairs = std::vector<std::vector<bool>>;
  const auto [known, added] = exclude_.try_emplace(&s, Pairs(all.size(), std::vector<bool>(all.size(), true)));
  if (added) {
    Pairs found(all.size(), std::vector<bool>(all.size(), false));
    for (size_t i = 0; i < all.size(); ++i)
      for (size_t j = 0; j < i; ++j) {
        Terms both;
        add(both, all[i]);
        add(both, all[j]);
        found[i][j] = found[j][i] = is_none(both);
        if (found[i][j]) continue;
        try {
          for (const size_t k : {i, j}) (void)of({{&all[k], true}});
        } catch (const Error& e) {
          tree_.refuse(
              s, "oneOf",
              str("[", j, "] and [", i, "] are not known to exclude each other (", e.what(), "); anyOf is supported"));
        }
      }
    exclude_[&s] = std::move(found);
  }
  const std::vector<std::vector<bool>>& exclude = exclude_.at(&s);
  std::vector<Option> options;
  for (size_t i = 0; i < all.size(); ++i) {
    Option& o = options.emplace_back();
    o.push_back({&all[i], false, scope, self});
    for (size_t j = 0; j < all.size(); ++j)
      if (j != i && !exclude[i][j]) o.push_back({&all[j], true, -1, self});
  }
  w.choices.push_back(std::move(options));
}

void SchemaCases::condition(Work& w, const Json& s, int scope, int self) {
  const bool then = s.find("then") != nullptr, otherwise = s.find("else") != nullptr;
  if (!then && !otherwise && scope == 0) return;
  const Json& when = tree_.part(s, "if");
  Option yes{{&when, false, scope, self}}, no{{&when, true, -1, self}};
  if (then) yes.push_back({&tree_.part(s, "then"), false, scope, self});
  if (otherwise) no.push_back({&tree_.part(s, "else"), false, scope, self});
  w.choices.push_back({yes, no});
}

}  // namespace kdelta::grammar
