#include "kdelta/io/grammar/schema_tree.h"

#include <algorithm>
#include <cmath>

#include "kdelta/io/grammar/grammar.h"

namespace kdelta::grammar {
namespace {

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

}  // namespace

std::string below(const std::string& path, std::string_view key) {
  std::string out = path + "/";
  for (const char c : printable(key)) out += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
  return out;
}

SchemaTree::SchemaTree(std::string name, const Json& root) : name_(std::move(name)), root_(root) {
  paths_.emplace(&root, "#");
}

const Json& SchemaTree::at(const Json& schema, const std::string& path) {
  paths_.try_emplace(&schema, path);
  return schema;
}

const Json& SchemaTree::keep(Json schema, const std::string& path) {
  made_.push_back(std::move(schema));
  is_made_.insert(&made_.back());
  return at(made_.back(), path);
}

const Json& SchemaTree::part(const Json& schema, std::string_view keyword, std::string_view key) {
  const Json& all = *schema.find(keyword);
  const std::string place = below(path(schema), keyword);
  return key.empty() ? at(all, place) : at(*all.find(key), below(place, key));
}

const Json::Array& SchemaTree::list(const Json& schema, std::string_view keyword) {
  const Json& list = *schema.find(keyword);
  const std::string place = below(path(schema), keyword);
  if (list.kind() != Json::Kind::array || list.array().empty())
    refuse(place, describe(list) + ", expected an array of schemas");
  for (size_t i = 0; i < list.array().size(); ++i) at(list.array()[i], below(place, std::to_string(i)));
  return list.array();
}

const Json::Object& SchemaTree::named(const Json& schema, std::string_view keyword) {
  static const Json::Object none;
  const Json* map = schema.find(keyword);
  if (map == nullptr) return none;
  const std::string place = below(path(schema), keyword);
  if (map->kind() != Json::Kind::object) refuse(place, describe(*map) + ", expected an object");
  const auto [all, is_new] = named_.try_emplace(map);
  if (is_new)
    for (const JsonMember& m : map->object()) all->second.emplace(m.key, &at(m.value, below(place, m.key)));
  return map->object();
}

const Json* SchemaTree::named(const Json& schema, std::string_view keyword, std::string_view key) {
  if (named(schema, keyword).empty()) return nullptr;
  const auto& all = named_.at(schema.find(keyword));
  const auto found = all.find(key);
  return found == all.end() ? nullptr : found->second;
}

std::vector<std::string> SchemaTree::names(const Json& list, const std::string& path) const {
  std::vector<std::string> out;
  if (list.kind() != Json::Kind::array) refuse(path, describe(list) + ", expected an array of names");
  for (const Json& name : list.array()) {
    if (name.kind() != Json::Kind::string) refuse(path, describe(name) + ", expected a name");
    out.push_back(name.string());
  }
  return out;
}

int64_t SchemaTree::count(const Json& schema, std::string_view keyword, int64_t absent) const {
  const Json* v = schema.find(keyword);
  if (v == nullptr) return absent;
  const bool number = v->kind() == Json::Kind::integer || v->kind() == Json::Kind::real;
  if (!number || v->number() != std::floor(v->number()) || v->number() < 0 ||
      v->number() > static_cast<double>(kMostRepeats))
    refuse(below(path(schema), keyword), describe(*v) + str(", expected a whole number from 0 to ", kMostRepeats));
  return static_cast<int64_t>(v->number());
}

void SchemaTree::refuse(const std::string& path, const std::string& why) const {
  fail(ErrorCode::invalid_argument, name_, ": ", path, ": ", why);
}

void SchemaTree::refuse(const Json& schema, std::string_view keyword, const std::string& why) const {
  refuse(below(path(schema), keyword), why);
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

const Json& SchemaTree::target(const std::string& ref, const std::string& path) {
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
  return this->at(*at, ref);
}

}  // namespace kdelta::grammar
