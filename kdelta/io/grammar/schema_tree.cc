#include "kdelta/io/grammar/schema_tree.h"

#include <algorithm>

#include "kdelta/core/error.h"

namespace kdelta::grammar {
namespace {

constexpr int kMostJoins = 32;  // schemas joined into one, one behind the other

std::string unescaped(std::string_view pointer) {
  std::string out;
  for (size_t i = 0; i < pointer.size(); ++i) {
    const auto hex = [](char c) {
      return c >= '0' && c <= '9' ? c - '0' : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10 : -1;
    };
    if (pointer[i] == '%' && i + 2 < pointer.size() && hex(pointer[i + 1]) >= 0 && hex(pointer[i + 2]) >= 0) {
      out += static_cast<char>(hex(pointer[i + 1]) * 16 + hex(pointer[i + 2]));
      i += 2;
    } else {
      out += pointer[i];
    }
  }
  std::string plain;
  for (size_t i = 0; i < out.size(); ++i) {
    if (out[i] == '~' && i + 1 < out.size() && (out[i + 1] == '0' || out[i + 1] == '1'))
      plain += out[++i] == '0' ? '~' : '/';
    else
      plain += out[i];
  }
  return plain;
}

// The types of `b` that also one of `a` covers; a whole number is a number.
std::vector<std::string> common_types(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  std::vector<std::string> out;
  const auto has = [](const std::vector<std::string>& in, const char* t) {
    return std::ranges::find(in, t) != in.end();
  };
  for (const std::string& t : b) {
    const bool in = has(a, t.c_str()) || (t == "integer" && has(a, "number"));
    if (in)
      out.push_back(t);
    else if (t == "number" && has(a, "integer"))
      out.push_back("integer");
  }
  return out;
}

std::vector<std::string> names_in(const Json& list) {
  std::vector<std::string> out;
  if (list.kind() == Json::Kind::string) out.push_back(list.string());
  if (list.kind() == Json::Kind::array)
    for (const Json& item : list.array())
      if (item.kind() == Json::Kind::string) out.push_back(item.string());
  return out;
}

Json list_of(const std::vector<std::string>& names) {
  Json::Array out;
  for (const std::string& n : names) out.push_back(n);
  return out;
}

// The values of a schema that has few: const, enum.
const Json* single_values(const Json& schema, Json::Array& out) {
  if (const Json* c = schema.find("const")) return out.push_back(*c), c;
  if (const Json* e = schema.find("enum"); e != nullptr && e->kind() == Json::Kind::array) return out = e->array(), e;
  return nullptr;
}

bool share_none(const Json::Array& a, const Json::Array& b) {
  return std::ranges::none_of(a, [&](const Json& x) { return std::ranges::find(b, x) != b.end(); });
}

bool requires_name(const Json& schema, const std::string& name) {
  const Json* list = schema.find("required");
  if (list == nullptr) return false;
  const std::vector<std::string> names = names_in(*list);
  return std::ranges::find(names, name) != names.end();
}

}  // namespace

std::string below(const std::string& path, std::string_view key) {
  return path.empty() ? printable(key) : path + "." + printable(key);
}

void SchemaTree::refuse(const std::string& path, const std::string& why) const {
  fail(ErrorCode::invalid_argument, name_, ": ", path.empty() ? "" : path + ": ", why);
}

bool SchemaTree::is_annotation(std::string_view keyword) {
  constexpr std::string_view all[] = {"title",    "description", "default", "examples", "$comment", "deprecated",
                                      "readOnly", "writeOnly",   "$schema", "$id",      "$defs",    "definitions"};
  return std::ranges::find(all, keyword) != std::end(all);
}

bool SchemaTree::has_constraints(const Json& schema) {
  return schema.kind() != Json::Kind::object ||
         std::ranges::any_of(schema.object(), [](const JsonMember& m) { return !is_annotation(m.key); });
}

const Json& SchemaTree::target(const std::string& ref, const std::string& path) const {
  if (ref.empty() || ref[0] != '#' || (ref.size() > 1 && ref[1] != '/'))
    refuse(path, str("'", printable(ref), "', expected a place in this document, like #/$defs/name"));
  const Json* at = &root_;
  for (size_t begin = 2; begin <= ref.size() && ref.size() > 1;) {
    const size_t end = std::min(ref.find('/', begin), ref.size());
    const std::string key = unescaped(std::string_view(ref).substr(begin, end - begin));
    const Json* next = nullptr;
    if (at->kind() == Json::Kind::object) next = at->find(key);
    if (at->kind() == Json::Kind::array && !key.empty() && key.size() < 7 &&
        key.find_first_not_of("0123456789") == std::string::npos && std::stoul(key) < at->array().size())
      next = &at->array()[std::stoul(key)];
    if (next == nullptr) refuse(path, str("'", printable(ref), "': there is no '", printable(key), "'"));
    at = next;
    begin = end + 1;
  }
  return *at;
}

Json SchemaTree::without_ref(const Json& schema, const std::string& path, int depth) const {
  if (depth > kMostJoins) refuse(path, str("more than ", kMostJoins, " schemas joined into one"));
  const Json* ref = schema.kind() == Json::Kind::object ? schema.find("$ref") : nullptr;
  if (ref == nullptr) return schema;
  if (ref->kind() != Json::Kind::string) refuse(below(path, "$ref"), describe(*ref) + ", expected a string");
  Json::Object rest;
  for (const JsonMember& m : schema.object())
    if (m.key != "$ref") rest.push_back(m);
  const Json& to = target(ref->string(), below(path, "$ref"));
  if (!has_constraints(rest)) return without_ref(to, path, depth + 1);
  return both(rest, to, path, depth + 1);
}

Json SchemaTree::both(const Json& a_schema, const Json& b_schema, const std::string& path, int depth) const {
  if (depth > kMostJoins) refuse(path, str("more than ", kMostJoins, " schemas joined into one"));
  const Json a = without_ref(a_schema, path, depth), b = without_ref(b_schema, path, depth);
  if (a.kind() == Json::Kind::boolean) return a.boolean() ? b : a;
  if (b.kind() == Json::Kind::boolean) return b.boolean() ? a : b;
  if (a.kind() != Json::Kind::object || b.kind() != Json::Kind::object)
    refuse(path, "expected schemas: objects, true or false");
  // What stands for the members that a schema does not name says so of those that it names itself.
  for (const auto& [one, other] : {std::pair{&a, &b}, {&b, &a}}) {
    const Json* rest = one->find("additionalProperties");
    if (rest != nullptr && *rest != Json(true) && other->find("properties") != nullptr && *one != *other)
      refuse(path, "additionalProperties: cannot be joined with the properties of another schema");
  }
  Json out = a;
  for (const JsonMember& m : b.object()) {
    const Json* has = out.find(m.key);
    if (has == nullptr) {
      out.set(m.key, m.value);
    } else if (*has == m.value || is_annotation(m.key)) {
      continue;
    } else if (m.key == "type") {
      out.set("type", list_of(common_types(names_in(*has), names_in(m.value))));
    } else if (m.key == "required") {
      std::vector<std::string> names = names_in(*has);
      for (const std::string& n : names_in(m.value))
        if (std::ranges::find(names, n) == names.end()) names.push_back(n);
      out.set("required", list_of(names));
    } else if (m.key == "properties" && has->kind() == Json::Kind::object && m.value.kind() == Json::Kind::object) {
      Json properties = *has;
      for (const JsonMember& p : m.value.object()) {
        const Json* same = properties.find(p.key);
        properties.set(p.key, same == nullptr
                                  ? p.value
                                  : both(*same, p.value, below(below(path, "properties"), p.key), depth + 1));
      }
      out.set("properties", std::move(properties));
    } else {
      refuse(path, m.key + ": two schemas that hold together have different ones");
    }
  }
  return out;
}

std::vector<std::string> SchemaTree::kinds(const Json& schema) const {
  const Json* type = schema.find("type");
  Json::Array values;
  if (type == nullptr && single_values(schema, values) != nullptr) {
    std::vector<std::string> out;
    for (const Json& v : values) out.push_back(kind_name(v.kind()));
    return out;
  }
  if (type == nullptr) return {"null", "boolean", "number", "string", "array", "object"};
  return names_in(*type);
}

bool SchemaTree::exclude(const Json& a_schema, const Json& b_schema, const std::string& path, int depth) const {
  const Json a = without_ref(a_schema, path, depth), b = without_ref(b_schema, path, depth);
  if (a.kind() != Json::Kind::object || b.kind() != Json::Kind::object) return a == Json(false) || b == Json(false);
  const std::vector<std::string> common = common_types(kinds(a), kinds(b));
  if (common.empty()) return true;
  Json::Array of_a, of_b;
  if (single_values(a, of_a) != nullptr && single_values(b, of_b) != nullptr && share_none(of_a, of_b)) return true;
  if (common != std::vector<std::string>{"object"} || depth > 4) return false;
  const Json *pa = a.find("properties"), *pb = b.find("properties");
  if (pa == nullptr || pb == nullptr || pa->kind() != Json::Kind::object || pb->kind() != Json::Kind::object)
    return false;
  return std::ranges::any_of(pa->object(), [&](const JsonMember& m) {
    const Json* other = pb->find(m.key);
    return other != nullptr && requires_name(a, m.key) && requires_name(b, m.key) &&
           exclude(m.value, *other, path, depth + 1);
  });
}

}  // namespace kdelta::grammar
