// A JSON Schema document as a tree: what a $ref points to, where in the document a schema stands, and keywords of the
// forms that schemas share. Schemas are known by their address; those that are made on the way are kept here too.
#pragma once

#include <deque>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "kdelta/io/json.h"

namespace kdelta::grammar {

class SchemaTree {
 public:
  // `name` begins the message of every error. `root` outlives this.
  SchemaTree(std::string name, const Json& root);

  const std::string& name() const { return name_; }
  const Json& root() const { return root_; }
  // The JSON pointer of a schema that at(), keep() or one of the functions below has given.
  const std::string& path(const Json& schema) const { return paths_.at(&schema); }
  const Json& at(const Json& schema, const std::string& path);
  const Json& keep(Json schema, const std::string& path);
  // Whether keep() made it.
  bool is_made(const Json& schema) const { return is_made_.contains(&schema); }

  // What "#", "#/$defs/x" points to. Throws naming `path`.
  const Json& target(const std::string& ref, const std::string& path);
  // The schema that is a keyword's value, or under `key` in it; both are there.
  const Json& part(const Json& schema, std::string_view keyword, std::string_view key = {});
  // The schemas of a list, of an object; the latter is empty when the keyword is absent.
  const Json::Array& list(const Json& schema, std::string_view keyword);
  const Json::Object& named(const Json& schema, std::string_view keyword);
  // The one of such an object under `key`; null when there is none.
  const Json* named(const Json& schema, std::string_view keyword, std::string_view key);
  std::vector<std::string> names(const Json& list, const std::string& path) const;
  // A count or a length.
  int64_t count(const Json& schema, std::string_view keyword, int64_t absent) const;

  [[noreturn]] void refuse(const std::string& path, const std::string& why) const;
  [[noreturn]] void refuse(const Json& schema, std::string_view keyword, const std::string& why) const;
  static bool is_annotation(std::string_view keyword);
  static bool has_constraints(const Json& schema);

 private:
  std::string name_;
  const Json& root_;
  std::unordered_map<const Json*, std::string> paths_;
  // By keyword's value: what named() has gone through. An object of thousands is asked for each of its members.
  std::unordered_map<const Json*, std::unordered_map<std::string_view, const Json*>> named_;
  std::deque<Json> made_;
  std::unordered_set<const Json*> is_made_;
};

// "#/properties" and "a": "#/properties/a".
std::string below(const std::string& path, std::string_view key);

}  // namespace kdelta::grammar
