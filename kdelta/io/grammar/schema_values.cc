#include "kdelta/io/grammar/schema_values.h"

#include <algorithm>
#include <cmath>

#include "kdelta/io/grammar/json_formats.h"
#include "kdelta/io/unicode.h"

namespace kdelta::grammar {
namespace {

bool is_number(const Json& v) {
  return v.kind() == Json::Kind::integer || v.kind() == Json::Kind::real;
}

int64_t characters(std::string_view text) {
  int64_t n = 0;
  for (size_t i = 0; i < text.size(); ++n) i += static_cast<size_t>(decode_char(text, i).bytes);
  return n;
}

}  // namespace

bool SchemaValues::is_valid(const Json& value, const Terms& terms) {
  return terms.empty() || std::ranges::any_of(cases_.of(terms), [&](const Case& c) { return fits(value, c); });
}

bool SchemaValues::holds(const Json& value, const Json& schema) {
  Terms terms;
  cases_.add(terms, schema);
  return is_valid(value, terms);
}

bool SchemaValues::fits(const Json& value, const Case& c, bool in_lists) {
  const auto is = [&](const Json& v) { return is_same(v, value); };
  if ((type_of(value) & c.types) == 0 || std::ranges::any_of(c.excluded, is)) return false;
  for (const Case::Part& p : c.parts) {
    const Json &s = *p.schema, *list = s.find("enum"), *one = s.find("const");
    if (!in_lists && list != nullptr && std::ranges::none_of(list->array(), is)) return false;
    if (!in_lists && one != nullptr && !is(*one)) return false;
    if (value.kind() == Json::Kind::string && !string_fits(value.string(), s)) return false;
    if (is_number(value) && !number_fits(value, s)) return false;
    if (value.kind() == Json::Kind::array && !array_fits(value.array(), s)) return false;
  }
  return value.kind() != Json::Kind::object || object_fits(value.object(), c);
}

bool SchemaValues::string_fits(const std::string& text, const Json& s) {
  const int64_t n = characters(text), most = tree_.count(s, "maxLength", kNoEnd);
  if (n < tree_.count(s, "minLength", 0) || (most != kNoEnd && n > most)) return false;
  for (const char* key : {"pattern", "not pattern"}) {
    const Json* pattern = s.find(key);
    if (pattern == nullptr) continue;
    const std::string place = below(tree_.path(s), "pattern");
    if (pattern->kind() != Json::Kind::string) tree_.refuse(place, describe(*pattern) + ", expected a string");
    const SchemaCases::Pattern& p = cases_.pattern(pattern->string(), place);
    if (!(key[0] == 'n' ? p.rest : p.match).contains(text)) return false;
  }
  const Json* format = s.find("format");
  if (format == nullptr) return true;
  TextSet of_format;
  of_format.match(tree_.name(), known_format(*format, tree_, s), Anchors::whole);
  return of_format.contains(text);
}

bool SchemaValues::number_fits(const Json& value, const Json& s) const {
  const double x = value.number();
  const auto bound = [&](const char* key, const auto& in) {
    const Json* v = s.find(key);
    return v == nullptr || !is_number(*v) || in(v->number());
  };
  return bound("minimum", [&](double b) { return x >= b; }) && bound("maximum", [&](double b) { return x <= b; }) &&
         bound("exclusiveMinimum", [&](double b) { return x > b; }) &&
         bound("exclusiveMaximum", [&](double b) { return x < b; }) &&
         bound("multipleOf", [&](double b) { return std::fmod(x, b) == 0; });
}

bool SchemaValues::array_fits(const Json::Array& items, const Json& s) {
  const auto n = std::ssize(items);
  const int64_t most = tree_.count(s, "maxItems", kNoEnd);
  if (n < tree_.count(s, "minItems", 0) || (most != kNoEnd && n > most)) return false;
  if (const Json* unique = s.find("uniqueItems"); unique != nullptr && *unique == Json(true))
    for (size_t i = 0; i < items.size(); ++i)
      for (size_t j = 0; j < i; ++j)
        if (is_same(items[i], items[j])) return false;
  size_t at = 0;
  if (s.find("prefixItems") != nullptr)
    for (const Json& part : tree_.list(s, "prefixItems"))
      if (at < items.size() && !holds(items[at++], part)) return false;
  if (s.find("items") == nullptr) return true;
  const Json& rest = tree_.part(s, "items");
  for (; at < items.size(); ++at)
    if (!holds(items[at], rest)) return false;
  return true;
}

bool SchemaValues::object_fits(const Json::Object& members, const Case& c) {
  const auto has = [&](const std::string& name) {
    return std::ranges::find(members, name, &JsonMember::key) != members.end();
  };
  for (const JsonMember& m : members)
    if (!is_valid(m.value, cases_.member(c, m.key))) return false;
  for (const Case::Part& p : c.parts) {
    const Json& s = *p.schema;
    const int64_t most = tree_.count(s, "maxProperties", kNoEnd);
    if (std::ssize(members) < tree_.count(s, "minProperties", 0) || (most != kNoEnd && std::ssize(members) > most))
      return false;
    if (const Json* required = s.find("required"))
      for (const std::string& name : tree_.names(*required, below(tree_.path(s), "required")))
        if (!has(name)) return false;
    for (const JsonMember& d : tree_.named(s, "dependentRequired"))
      for (const std::string& name : tree_.names(d.value, below(below(tree_.path(s), "dependentRequired"), d.key)))
        if (has(d.key) && !has(name)) return false;
    if (s.find("propertyNames") == nullptr) continue;
    for (const JsonMember& m : members)
      if (!holds(Json(m.key), tree_.part(s, "propertyNames"))) return false;
  }
  return true;
}

}  // namespace kdelta::grammar
