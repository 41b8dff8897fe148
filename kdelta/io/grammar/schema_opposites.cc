// Schemas that must not hold: by keyword, what holds instead.
#include <algorithm>

#include "kdelta/core/check.h"
#include "kdelta/io/grammar/schema_cases.h"

namespace kdelta::grammar {

// A schema does not hold when one of its keywords does not.
void SchemaCases::deny(Work& w, const Json& s, int self) {
  std::vector<Option> options;
  const auto node = [&](const Json& schema, bool negated) { return Node{&schema, negated, -1, self}; };
  for (const Json* other : opposites(s)) options.push_back({node(*other, false)});
  if (s.find("$ref") != nullptr) options.push_back({node(reference(s), true)});
  if (s.find("not") != nullptr) options.push_back({node(tree_.part(s, "not"), false)});
  if (s.find("allOf") != nullptr)
    for (const Json& part : tree_.list(s, "allOf")) options.push_back({node(part, true)});
  for (const char* key : {"anyOf", "oneOf"}) {
    if (s.find(key) == nullptr) continue;
    const Json::Array& all = tree_.list(s, key);
    Option& none = options.emplace_back();
    for (const Json& part : all) none.push_back(node(part, true));
    for (size_t i = 0; i < all.size() && key[0] == 'o'; ++i)
      for (size_t j = 0; j < i; ++j) options.push_back({node(all[i], false), node(all[j], false)});
  }
  if (s.find("if") != nullptr) {
    const Json& when = tree_.part(s, "if");
    if (s.find("then") != nullptr) options.push_back({node(when, false), node(tree_.part(s, "then"), true)});
    if (s.find("else") != nullptr) options.push_back({node(when, true), node(tree_.part(s, "else"), true)});
  }
  w.choices.push_back(std::move(options));
}

const std::vector<const Json*>& SchemaCases::opposites(const Json& s) {
  const auto known = opposites_.find(&s);
  if (known != opposites_.end()) return known->second;
  std::vector<const Json*> out;
  const std::string& path = tree_.path(s);
  const auto object_of = [&](Json::Object more) {
    more.insert(more.begin(), {"type", "object"});
    out.push_back(&tree_.keep(std::move(more), path));
  };
  for (const JsonMember& m : s.object()) {
    if (m.key == "properties") {
      for (const JsonMember& p : tree_.named(s, m.key))
        object_of(
            {{"required", Json::Array{p.key}}, {"properties", Json::Object{{p.key, Json::Object{{"not", p.value}}}}}});
    } else if (m.key == "required") {
      for (const std::string& name : tree_.names(m.value, below(path, m.key)))
        object_of({{"properties", Json::Object{{name, false}}}});
    } else if (m.key == "dependentRequired") {
      for (const JsonMember& d : tree_.named(s, m.key))
        for (const std::string& name : tree_.names(d.value, below(below(path, m.key), d.key)))
          object_of({{"required", Json::Array{d.key}}, {"properties", Json::Object{{name, false}}}});
    } else if (std::optional<Json> other = opposite(s, m)) {
      out.push_back(&tree_.keep(std::move(*other), path));
    }
  }
  return opposites_.emplace(&s, std::move(out)).first->second;
}

// Of one keyword; nothing for those that always hold and those of deny().
std::optional<Json> SchemaCases::opposite(const Json& s, const JsonMember& m) {
  constexpr std::string_view kElsewhere[] = {"$ref", "not", "allOf", "anyOf", "oneOf", "if", "then", "else"};
  if (SchemaTree::is_annotation(m.key) || std::ranges::find(kElsewhere, m.key) != std::end(kElsewhere))
    return std::nullopt;
  if (m.key == "type") return Json::Object{{"not type", m.value}};
  if (m.key == "not type") return Json::Object{{"type", m.value}};
  if (m.key == "const") return Json::Object{{"not enum", Json::Array{m.value}}};
  if (m.key == "enum" && m.value.kind() == Json::Kind::array) return Json::Object{{"not enum", m.value}};
  if (m.key == "not enum") return Json::Object{{"enum", m.value}};
  if (m.key == "pattern") return Json::Object{{"type", "string"}, {"not pattern", m.value}};
  struct Pair {
    std::string_view key, other, type;
    int64_t step;
  };
  constexpr Pair kCounts[] = {{"minLength", "maxLength", "string", -1},
                              {"maxLength", "minLength", "string", 1},
                              {"minItems", "maxItems", "array", -1},
                              {"maxItems", "minItems", "array", 1},
                              {"minProperties", "maxProperties", "object", -1},
                              {"maxProperties", "minProperties", "object", 1}};
  if (const auto* pair = std::ranges::find(kCounts, m.key, &Pair::key); pair != std::end(kCounts)) {
    const int64_t n = tree_.count(s, m.key, 0) + pair->step;
    if (n < 0) return std::nullopt;
    return Json::Object{{"type", pair->type}, {std::string(pair->other), n}};
  }
  constexpr Pair kBounds[] = {{"minimum", "exclusiveMaximum", "number", 0},
                              {"maximum", "exclusiveMinimum", "number", 0},
                              {"exclusiveMinimum", "maximum", "number", 0},
                              {"exclusiveMaximum", "minimum", "number", 0}};
  if (const auto* pair = std::ranges::find(kBounds, m.key, &Pair::key); pair != std::end(kBounds))
    return Json::Object{{"type", pair->type}, {std::string(pair->other), m.value}};
  tree_.refuse(s, m.key, "is not supported where the schema must not hold (not, if, oneOf)");
}

}  // namespace kdelta::grammar
