// Whether one value is valid under schemas: for the values of enum and const, and for the names of properties.
#pragma once

#include "kdelta/io/grammar/schema_cases.h"

namespace kdelta::grammar {

class SchemaValues {
 public:
  SchemaValues(SchemaTree& tree, SchemaCases& cases) : tree_(tree), cases_(cases) {}

  // Throws as SchemaCases::of() does. A text of which engines differ whether a pattern matches it is not valid.
  bool is_valid(const Json& value, const Terms& terms);
  // Under a case. One of the case's own values is in all its lists.
  bool fits(const Json& value, const Case& c, bool in_lists = false);

 private:
  bool string_fits(const std::string& text, const Json& s);
  bool number_fits(const Json& value, const Json& s) const;
  bool array_fits(const Json::Array& items, const Json& s);
  bool object_fits(const Json::Object& members, const Case& c);
  bool holds(const Json& value, const Json& schema);

  SchemaTree& tree_;
  SchemaCases& cases_;
};

}  // namespace kdelta::grammar
