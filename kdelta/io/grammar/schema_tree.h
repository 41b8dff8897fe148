// A JSON Schema document as a tree: looking up what a $ref points to, joining schemas that hold together, and telling
// whether two exclude each other.
#pragma once

#include <string>
#include <vector>

#include "kdelta/io/json.h"

namespace kdelta::grammar {

class SchemaTree {
 public:
  // `name` begins the message of every error.
  SchemaTree(std::string name, const Json& root) : name_(std::move(name)), root_(root) {}

  const Json& root() const { return root_; }
  // What "#", "#/$defs/x" points to. Throws naming `path`.
  const Json& target(const std::string& ref, const std::string& path) const;
  // A schema of what is valid under both; references are followed where they stand beside other keywords. Throws
  // naming the keyword of which one schema cannot hold both values.
  Json both(const Json& a, const Json& b, const std::string& path, int depth = 0) const;
  // Known to have no document in common.
  bool exclude(const Json& a, const Json& b, const std::string& path, int depth = 0) const;

  [[noreturn]] void refuse(const std::string& path, const std::string& why) const;
  static bool is_annotation(std::string_view keyword);
  static bool has_constraints(const Json& schema);

 private:
  Json without_ref(const Json& schema, const std::string& path, int depth) const;
  std::vector<std::string> kinds(const Json& schema) const;

  std::string name_;
  const Json& root_;
};

// "properties.a" behind "" and "b" below it: "properties.a.b".
std::string below(const std::string& path, std::string_view key);

}  // namespace kdelta::grammar
