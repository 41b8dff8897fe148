#include "kdelta/io/grammar/schema_writer.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kdelta/core/check.h"
#include "kdelta/io/grammar/json_formats.h"

namespace kdelta::grammar {
namespace {

constexpr int64_t kMostPrefixItems = 100;
constexpr size_t kMostDifferent = 8;    // values of items that must differ
constexpr int64_t kMostDivisor = 1000;  // multipleOf

}  // namespace

RuleId SchemaWriter::run() {
  Terms root;
  cases_.add(root, tree_.root());
  const RuleId rule = rule_of(root);
  define_open();
  return rule;
}

RuleId SchemaWriter::elements(const ArgumentElement& element) {
  const Json& root = tree_.root();
  std::vector<std::string> required;
  if (const Json* names = root.find("required")) required = tree_.names(*names, below(tree_.path(root), "required"));
  std::vector<ExprId> parts;
  for (const JsonMember& m : tree_.named(root, "properties")) {
    Terms terms;
    cases_.add(terms, m.value);
    bare_ = true;
    std::vector<ExprId> all;
    for (const auto& [type, text] : by_type(terms)) all.push_back(element(m.key, type, text));
    bare_ = false;
    const ExprId e = g_.choice(std::move(all));
    parts.push_back(std::ranges::find(required, m.key) != required.end() ? e : g_.optional(e));
  }
  const RuleId rule = g_.rule("arguments");
  g_.define(rule, g_.sequence(std::move(parts)));
  define_open();
  return rule;
}

void SchemaWriter::define_open() {
  while (!open_.empty()) {
    const Open next = std::move(open_.front());
    open_.pop_front();
    std::vector<ExprId> all;
    for (const Typed& t : by_type(next.terms)) all.push_back(t.text);
    g_.define(next.rule, g_.choice(std::move(all)));
  }
}

RuleId SchemaWriter::rule_of(const Terms& terms) {
  const auto [known, added] = rules_.try_emplace(terms, -1);
  if (!added) return known->second;
  known->second = g_.rule(terms.empty() ? "#" : tree_.path(*terms[0].schema));
  open_.push_back({known->second, terms});
  return known->second;
}

ExprId SchemaWriter::value(const Terms& terms) {
  return terms.empty() ? json_.value() : g_.call(rule_of(terms));
}

ExprId SchemaWriter::as_rule(ExprId e, const std::string& name) {
  const RuleId rule = g_.rule(name);
  g_.define(rule, e);
  return g_.call(rule);
}

bool SchemaWriter::has(const Case& c, std::initializer_list<std::string_view> keywords) {
  return std::ranges::any_of(c.parts, [&](const Case::Part& p) {
    return std::ranges::any_of(keywords, [&](std::string_view k) { return p.schema->find(k) != nullptr; });
  });
}

void SchemaWriter::refuse_excluded(const Terms& terms, const char* what) const {
  tree_.refuse(tree_.path(*terms[0].schema), str("not: ", what, " is not supported"));
}

std::vector<SchemaWriter::Typed> SchemaWriter::by_type(const Terms& terms) {
  std::vector<Typed> out;
  for (const Case& c : cases_.of(terms)) of_case(terms, c, out);
  return out;
}

void SchemaWriter::of_case(const Terms& terms, const Case& c, std::vector<Typed>& out) {
  const auto excluded = [&](const Json& v) {
    return std::ranges::any_of(c.excluded, [&](const Json& e) { return is_same(e, v); });
  };
  const auto has_excluded = [&](Json::Kind kind) {
    return std::ranges::any_of(c.excluded, [&](const Json& e) { return e.kind() == kind; });
  };
  if (c.values) {
    for (const Json& v : *c.values) {
      if (!values_.fits(v, c, true)) continue;
      const bool number = (type_of(v) & (kWhole | kFraction)) != 0;
      const bool bare = bare_ && v.kind() == Json::Kind::string;
      out.push_back({number ? "number" : kind_name(v.kind()), bare ? g_.literal(v.string()) : json_.constant(v)});
    }
    return;
  }
  if ((c.types & kObject) != 0) {
    if (has_excluded(Json::Kind::object)) refuse_excluded(terms, "an object in enum or const");
    out.push_back({"object", object(c)});
  }
  if ((c.types & kArray) != 0) {
    if (has_excluded(Json::Kind::array)) refuse_excluded(terms, "an array in enum or const");
    out.push_back({"array", array(c)});
  }
  if ((c.types & kString) != 0) out.push_back({"string", string(c)});
  if ((c.types & (kWhole | kFraction)) != 0) out.push_back({"number", number(terms, c)});
  if ((c.types & kBoolean) != 0)
    for (const bool b : {true, false})
      if (!excluded(Json(b))) out.push_back({"boolean", g_.literal(b ? "true" : "false")});
  if ((c.types & kNull) != 0 && !excluded(Json())) out.push_back({"null", g_.literal("null")});
}

std::string_view SchemaWriter::pattern_of(const Json& s, const Json& pattern) const {
  if (pattern.kind() != Json::Kind::string) tree_.refuse(s, "pattern", describe(pattern) + ", expected a string");
  return pattern.string();
}

TextSet SchemaWriter::text_set(const Case& c, NumberBounds* lengths) {
  TextSet set;
  int64_t least = 0, most = kNoEnd;
  for (const Case::Part& p : c.parts) {
    const Json& s = *p.schema;
    const std::string place = tree_.name() + ": " + below(tree_.path(s), "pattern");
    if (const Json* v = s.find("pattern")) set.match(place, pattern_of(s, *v), Anchors::search);
    if (const Json* v = s.find("not pattern")) set.match(place, pattern_of(s, *v), Anchors::search, true);
    if (const Json* v = s.find("format")) set.match(place, known_format(*v, tree_, s), Anchors::whole);
    least = std::max(least, tree_.count(s, "minLength", 0));
    const int64_t at_most = tree_.count(s, "maxLength", kNoEnd);
    if (at_most != kNoEnd) most = most == kNoEnd ? at_most : std::min(most, at_most);
  }
  std::vector<std::string> excluded;
  for (const Json& v : c.excluded)
    if (v.kind() == Json::Kind::string) excluded.push_back(v.string());
  if (!excluded.empty()) set.among(excluded, true);
  if (lengths != nullptr && set.all()) {
    lengths->low = least;
    if (most != kNoEnd) lengths->high = most;
  } else {
    set.length(least, most);
  }
  return set;
}

ExprId SchemaWriter::string(const Case& c) {
  NumberBounds lengths;
  const TextSet set = text_set(c, &lengths);
  if (set.all()) {
    const int64_t least = lengths.low.value_or(0), most = lengths.high.value_or(kNoEnd);
    if (least == 0 && most == kNoEnd && !bare_) return json_.string();
    if (most != kNoEnd && most < least) return g_.choice({});
    return quoted(g_.repeat(bare_ ? g_.chars(CharSet::all()) : json_.character(), least, most));
  }
  // A single pattern is as it is read: no automaton of its own could be too large.
  if (set.size() == 1)
    for (const Case::Part& p : c.parts)
      for (const char* key : {"pattern", "format"}) {
        const Json* v = p.schema->find(key);
        if (v == nullptr) continue;
        const bool pattern = key[0] == 'p';
        const std::string_view text = pattern ? pattern_of(*p.schema, *v) : known_format(*v, tree_, *p.schema);
        return quoted(read_regex(g_, tree_.name(), text, pattern ? Anchors::search : Anchors::whole, writer()));
      }
  std::string place;
  for (const Case::Part& p : c.parts)
    for (const char* key : {"pattern", "not pattern", "format", "maxLength", "minLength"})
      if (place.empty() && p.schema->find(key) != nullptr)
        place = below(tree_.path(*p.schema), std::string_view(key) == "not pattern" ? "pattern" : key);
  return quoted(set.write(g_, tree_.name() + ": " + place, writer()));
}

NumberBounds SchemaWriter::bounds(const Case& c) const {
  NumberBounds b;
  const bool integer = (c.types & kFraction) == 0;
  const auto bound = [&](const char* key, bool low, bool exclusive) {
    c.each(key, [&](const Json& s, const Json& v) {
      if (v.kind() != Json::Kind::integer && v.kind() != Json::Kind::real)
        tree_.refuse(s, key, describe(v) + ", expected a number");
      const double x = v.number();
      if (std::abs(x) > 9e18) tree_.refuse(s, key, describe(v) + ", expected a number of at most 18 digits");
      const bool whole = x == std::floor(x);
      if (!integer && !whole)
        tree_.refuse(s, key, describe(v) + ": for numbers with a fraction only whole bounds are supported");
      int64_t n =
          v.kind() == Json::Kind::integer ? v.integer() : static_cast<int64_t>(low ? std::ceil(x) : std::floor(x));
      if (integer && exclusive && whole) n += low ? 1 : -1;
      std::optional<int64_t>& to = low ? b.low : b.high;
      bool& out = low ? b.above_low : b.below_high;
      if (to && (low ? *to > n : *to < n)) return;
      out = !integer && (exclusive || (to && *to == n && out));
      to = n;
    });
  };
  bound("minimum", true, false);
  bound("exclusiveMinimum", true, true);
  bound("maximum", false, false);
  bound("exclusiveMaximum", false, true);
  return b;
}

// The whole number that all multiples are multiples of; 1 when there is none.
int64_t SchemaWriter::divisor(const Case& c) const {
  int64_t out = 1;
  c.each("multipleOf", [&](const Json& s, const Json& v) {
    const bool number = v.kind() == Json::Kind::integer || v.kind() == Json::Kind::real;
    const double x = number ? v.number() : 0;
    if (!(x >= 1 && x <= static_cast<double>(kMostDivisor)) || x != std::floor(x) ||
        (out = std::lcm(out, static_cast<int64_t>(x))) > kMostDivisor)
      tree_.refuse(s, "multipleOf", describe(v) + str(", supported: a whole number up to ", kMostDivisor));
  });
  return out;
}

ExprId SchemaWriter::number(const Terms& terms, const Case& c) {
  if ((c.types & kWhole) == 0)
    tree_.refuse(tree_.path(*terms[0].schema), "numbers that must not be whole (by not or oneOf) are not supported");
  Case whole = c;
  const int64_t divisor = this->divisor(c);
  if (has(c, {"multipleOf"})) whole.types &= ~kFraction;
  std::vector<int64_t> holes;
  for (const Json& v : c.excluded) {
    if (v.kind() != Json::Kind::integer && v.kind() != Json::Kind::real) continue;
    if ((whole.types & kFraction) != 0) refuse_excluded(terms, "a number among numbers with a fraction");
    if (v.number() == std::floor(v.number()) && std::abs(v.number()) < 9e18)
      holes.push_back(v.kind() == Json::Kind::integer ? v.integer() : static_cast<int64_t>(v.number()));
  }
  const NumberBounds b = bounds(whole);
  if ((whole.types & kFraction) != 0) return b.low || b.high ? decimals(g_, b) : json_.number();
  if (divisor == 1 && holes.empty()) return b.low || b.high ? integers(g_, b) : json_.integer();
  std::ranges::sort(holes);
  std::vector<ExprId> all;
  NumberBounds rest = b;
  for (const int64_t hole : holes) {
    if ((rest.low && hole < *rest.low) || (rest.high && hole > *rest.high)) continue;
    NumberBounds part = rest;
    part.high = hole - 1;
    if (!part.low || *part.low <= *part.high) all.push_back(multiples(g_, part, divisor));
    rest.low = hole + 1;
  }
  if (!rest.low || !rest.high || *rest.low <= *rest.high) all.push_back(multiples(g_, rest, divisor));
  return g_.choice(std::move(all));
}

ExprId SchemaWriter::array(const Case& c) {
  if (!has(c, {"items", "prefixItems", "minItems", "maxItems", "uniqueItems"})) return json_.array();
  int64_t least = 0, most = kNoEnd, prefixes = 0;
  const auto at_most = [&](int64_t n) { most = most == kNoEnd ? n : std::min(most, n); };
  const Json* unique = nullptr;
  for (const Case::Part& p : c.parts) {
    const Json& s = *p.schema;
    least = std::max(least, tree_.count(s, "minItems", 0));
    if (const int64_t n = tree_.count(s, "maxItems", kNoEnd); n != kNoEnd) at_most(n);
    if (s.find("prefixItems") != nullptr) prefixes = std::max(prefixes, std::ssize(tree_.list(s, "prefixItems")));
    if (prefixes > kMostPrefixItems)
      tree_.refuse(s, "prefixItems", str(prefixes, " schemas, expected at most ", kMostPrefixItems));
    if (const Json* items = s.find("items"); items != nullptr && items->kind() == Json::Kind::array)
      tree_.refuse(s, "items", "a list of schemas is not supported; prefixItems is");
    if (const Json* u = s.find("uniqueItems")) {
      if (u->kind() != Json::Kind::boolean) tree_.refuse(s, "uniqueItems", describe(*u) + ", expected true or false");
      if (u->boolean()) unique = &s;
    }
  }
  const auto terms_at = [&](int64_t i) {
    Terms terms;
    for (const Case::Part& p : c.parts) {
      const Json& s = *p.schema;
      const Json::Array* list = s.find("prefixItems") == nullptr ? nullptr : &tree_.list(s, "prefixItems");
      if (list != nullptr && i < std::ssize(*list))
        cases_.add(terms, (*list)[static_cast<size_t>(i)]);
      else if (s.find("items") != nullptr)
        cases_.add(terms, tree_.part(s, "items"));
    }
    return terms;
  };
  for (int64_t i = 0; i <= prefixes; ++i)
    if (cases_.is_none(terms_at(i))) at_most(i);
  if (most != kNoEnd && most < least) return g_.choice({});
  if (most != kNoEnd) prefixes = std::min(prefixes, most);
  const Terms items = terms_at(prefixes);
  if (unique != nullptr && (most == kNoEnd || most > 1)) {
    if (prefixes > 0) tree_.refuse(*unique, "uniqueItems", "true is not supported beside prefixItems");
    return different_items(*unique, items, least, most);
  }
  std::vector<ExprId> prefix;
  for (int64_t i = 0; i < prefixes; ++i) prefix.push_back(value(terms_at(i)));
  ExprId rest = g_.empty();
  if (most == kNoEnd || most > prefixes) {
    const int64_t from = std::max<int64_t>(least - prefixes, 0), to = most == kNoEnd ? most : most - prefixes;
    const ExprId item = value(items), more = g_.sequence({json_.comma(), item});
    if (prefixes > 0) {
      rest = g_.repeat(more, from, to);
    } else {
      rest = g_.sequence({item, g_.repeat(more, std::max<int64_t>(from - 1, 0), to == kNoEnd ? to : to - 1)});
      if (from == 0) rest = g_.optional(rest);
    }
  }
  for (int64_t i = prefixes; i-- > 0;) {
    std::vector<ExprId> parts{prefix[static_cast<size_t>(i)], rest};
    if (i > 0) parts.insert(parts.begin(), json_.comma());
    rest = g_.sequence(std::move(parts));
    if (i >= least) rest = g_.optional(rest);
  }
  return json_.enclosed("[", rest, "]");
}

// The values of schemas that have few.
std::vector<Json> SchemaWriter::finite_values(const Terms& terms, bool* known) {
  std::vector<Json> out;
  const auto take = [&](const Json& v) {
    const bool seen = std::ranges::any_of(out, [&](const Json& o) { return is_same(o, v); });
    if (!seen && values_.is_valid(v, terms)) out.push_back(v);
  };
  *known = !terms.empty();
  for (const Case& c : cases_.of(terms)) {
    if (c.values) {
      for (const Json& v : *c.values) take(v);
      continue;
    }
    *known = *known && (c.types & ~(kNull | kBoolean)) == 0;
    for (const Json& v : {Json(), Json(true), Json(false)}) take(v);
  }
  return out;
}

// A rule for each set of values that are left.
ExprId SchemaWriter::different_items(const Json& s, const Terms& items, int64_t least, int64_t most) {
  bool known = false;
  const std::vector<Json> all = finite_values(items, &known);
  if (!known || all.size() > kMostDifferent)
    tree_.refuse(s, "uniqueItems",
                 str("true, supported for items of at most ", kMostDifferent, " values (enum, const)"));
  const auto n = static_cast<int64_t>(all.size());
  if (n < least) return g_.choice({});
  std::vector<ExprId> constants;
  for (const Json& v : all) constants.push_back(as_rule(json_.constant(v), "item"));
  std::vector<RuleId> behind;  // by the set of values that are used
  for (size_t used = 0; used < size_t{1} << all.size(); ++used) behind.push_back(g_.rule("different items"));
  for (size_t used = 0; used < behind.size(); ++used) {
    const auto count = static_cast<int64_t>(std::popcount(used));
    std::vector<ExprId> options;
    if (count >= least) options.push_back(g_.empty());
    for (size_t v = 0; v < all.size(); ++v) {
      if ((used >> v & 1) != 0 || (most != kNoEnd && count >= most)) continue;
      const ExprId next = g_.call(behind[used | size_t{1} << v]);
      options.push_back(count == 0 ? g_.sequence({constants[v], next})
                                   : g_.sequence({json_.comma(), constants[v], next}));
    }
    g_.define(behind[used], g_.choice(std::move(options)));
  }
  return json_.enclosed("[", g_.call(behind[0]), "]");
}

}  // namespace kdelta::grammar
