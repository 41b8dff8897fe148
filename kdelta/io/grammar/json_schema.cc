#include "kdelta/io/grammar/json_schema.h"

#include <algorithm>

#include "kdelta/io/grammar/schema_writer.h"

namespace kdelta::grammar {
namespace {

ExprId bare_text(Grammar& g) {
  return g.repeat(g.chars(CharSet::all()), 0, kNoEnd);
}

Json parse_schema(std::string_view text, const std::string& name) {
  return parse_json(text, {name, ErrorCode::invalid_argument}, {.max_bytes = int64_t{1} << 20});
}

// Of an object, whatever the schema says beside that.
Json parse_arguments(std::string_view text, const std::string& name) {
  Json schema = parse_schema(text, name);
  if (schema.kind() != Json::Kind::object)
    fail(ErrorCode::invalid_argument, name, ": ", describe(schema), ", expected a schema of an object");
  if (schema.find("type") == nullptr) schema.set("type", "object");
  if (*schema.find("type") != Json("object"))
    fail(ErrorCode::invalid_argument, name, ": #/type: ", describe(*schema.find("type")),
         ", expected \"object\": arguments are one");
  return schema;
}

// Nothing but named members, whichever of them are there.
bool names_all(const Json& schema) {
  const Json* properties = schema.find("properties");
  const Json* rest = schema.find("additionalProperties");
  if (properties == nullptr ? rest == nullptr : properties->kind() != Json::Kind::object) return false;
  if (rest != nullptr && *rest != Json(false)) return false;
  for (const JsonMember& m : schema.object())
    if (m.key != "type" && m.key != "properties" && m.key != "required" && m.key != "additionalProperties" &&
        !SchemaTree::is_annotation(m.key))
      return false;
  const Json* required = schema.find("required");
  if (required == nullptr || required->kind() != Json::Kind::array) return required == nullptr;
  return std::ranges::all_of(required->array(), [&](const Json& name) {
    return name.kind() == Json::Kind::string && properties != nullptr && properties->find(name.string()) != nullptr;
  });
}

}  // namespace

RuleId read_json_schema(Grammar& out, std::string_view text) {
  const Json schema = parse_schema(text, out.name());
  return SchemaWriter(out, out.name(), schema).run();
}

RuleId read_arguments_schema(Grammar& out, std::string_view text, const std::string& name) {
  const Json schema = parse_arguments(text, name);
  return SchemaWriter(out, name, schema).run();
}

std::optional<RuleId> read_argument_elements(Grammar& out, std::string_view text, const std::string& name,
                                             const ArgumentElement& element) {
  const Json schema = parse_arguments(text, name);
  if (!names_all(schema)) return std::nullopt;
  return SchemaWriter(out, name, schema).elements(element);
}

ExprId any_argument_element(Grammar& out, const std::function<ExprId(std::string_view, ExprId)>& element) {
  JsonRules json(out);
  return out.choice({element("string", bare_text(out)), element("number", json.number()),
                     element("boolean", json.boolean()), element("null", out.literal("null")),
                     element("object", json.object()), element("array", json.array())});
}

RuleId json_object_rule(Grammar& out) {
  const RuleId rule = out.rule("object");
  out.define(rule, JsonRules(out).object());
  return rule;
}

}  // namespace kdelta::grammar
