#include "frontends/server/openapi.h"

#include <stdexcept>

#include "frontends/server/answer_format.h"

namespace kdelta::server {
namespace {

constexpr std::string_view kId = "{id}", kSchemas = "#/components/schemas/";

Json reference(const std::string& schema) {
  return object({{"$ref", std::string(kSchemas) + schema}});
}

Json content(std::string_view type, Json schema) {
  return object({{std::string(type), object({{"schema", std::move(schema)}})}});
}

Json replies(const Endpoint& e) {
  const bool json = *e.reply != '\0';
  Json body = content(e.type, json ? reference(e.reply) : object({{"type", "string"}}));
  if (e.streams)
    body.set("text/event-stream",
             object({{"schema", object({{"description", "The reply piece by piece, as server-sent events"}})}}));
  Json out = object({{"200", object({{"description", "What was asked for"}, {"content", std::move(body)}})}});
  for (const char* status : {"4XX", "5XX"})
    out.set(status, object({{"description", *status == '4' ? "The request is at fault" : "The server is"},
                            {"content", content("application/json", reference(e.error))}}));
  return out;
}

// Retries' (retries.h).
Json retry_key() {
  return object({{"name", "Idempotency-Key"},
                 {"in", "header"},
                 {"description", "Requests with one key are answered once: they join the answer or get what was kept"},
                 {"schema", object({{"type", "string"}, {"pattern", "^[!-~]{1,255}$"}})}});
}

Json operation(const Endpoint& e) {
  Json out = object({{"summary", e.summary}});
  if (std::string_view(e.path).find(kId) != std::string_view::npos)
    out.set("parameters", Json::Array{object({{"name", "id"},
                                              {"in", "path"},
                                              {"required", true},
                                              {"schema", object({{"type", "string"}, {"minLength", 1}})}})});
  if (e.streams) out.set("parameters", Json::Array{retry_key()});
  if (*e.body != '\0')
    out.set("requestBody", object({{"required", true}, {"content", content("application/json", reference(e.body))}}));
  out.set("responses", replies(e));
  if (e.open) out.set("security", Json::Array{});
  return out;
}

const Json& schema_of(const std::string& name) {
  const Json* found = request_schemas().find(name);
  if (found == nullptr) throw std::logic_error("no request schema " + name);
  return *found;
}

using Schemas = std::vector<const Json*>;

// The schemas that a value of that kind may be of.
void alternatives(const Json& schema, Json::Kind kind, Schemas& out) {
  if (const Json* to = schema.find("$ref"))
    return alternatives(schema_of(to->string().substr(kSchemas.size())), kind, out);
  if (const Json* forms = schema.find("anyOf")) {
    for (const Json& form : forms->array()) alternatives(form, kind, out);
    return;
  }
  const Json* type = schema.find("type");
  const std::string_view name = kind_name(kind);
  bool fits = type == nullptr;
  if (type != nullptr && type->kind() == Json::Kind::string) fits = type->string() == name;
  if (type != nullptr && type->kind() == Json::Kind::array)
    for (const Json& one : type->array()) fits = fits || one.string() == name;
  if (fits) out.push_back(&schema);
}

void check(const Json& value, const Schemas& of, const std::string& path);

void check_object(const Json& value, const Schemas& of, const std::string& path) {
  for (const JsonMember& m : value.object()) {
    const std::string field = path.empty() ? printable(m.key) : path + "." + printable(m.key);
    Schemas next;
    bool known = false;
    for (const Json* schema : of) {
      const Json* properties = schema->find("properties");
      const Json* described = properties == nullptr ? nullptr : properties->find(m.key);
      if (described != nullptr) alternatives(*described, m.value.kind(), next);
      known = known || properties == nullptr || described != nullptr;
    }
    if (!known) fail(ErrorCode::invalid_argument, "request: ", field, ": not supported in a request");
    check(m.value, next, field);
  }
}

// A value of no schema is of the wrong kind: whoever reads it says that better.
void check(const Json& value, const Schemas& of, const std::string& path) {
  if (of.empty()) return;
  if (value.kind() == Json::Kind::object) return check_object(value, of, path);
  if (value.kind() != Json::Kind::array) return;
  for (size_t i = 0; i < value.array().size(); ++i) {
    const Json& item = value.array()[i];
    if (item.kind() != Json::Kind::object && item.kind() != Json::Kind::array) continue;
    Schemas next;
    for (const Json* schema : of)
      if (const Json* items = schema->find("items")) alternatives(*items, item.kind(), next);
    check(item, next, str(path, "[", i, "]"));
  }
}

}  // namespace

Json openapi(std::span<const Endpoint> endpoints, const std::string& version) {
  Json paths = Json::Object{};
  for (const Endpoint& e : endpoints) {
    std::string method = e.method;
    for (char& c : method) c = static_cast<char>(c - 'A' + 'a');
    Json path = paths.find(e.path) == nullptr ? Json(Json::Object{}) : *paths.find(e.path);
    path.set(method, operation(e));
    paths.set(e.path, std::move(path));
  }
  Json schemas = request_schemas();
  for (const JsonMember& m : reply_schemas().object()) schemas.set(m.key, m.value);
  const Json bearer = object({{"type", "http"}, {"scheme", "bearer"}});
  return object(
      {{"openapi", "3.1.0"},
       {"info", object({{"title", "kdelta"}, {"version", version}})},
       {"paths", std::move(paths)},
       {"components", object({{"schemas", std::move(schemas)}, {"securitySchemes", object({{"key", bearer}})}})},
       {"security", Json::Array{object({{"key", Json::Array{}}}), Json::Object{}}}});
}

void refuse_undescribed(const Json& body, const std::string& schema) {
  Schemas of;
  alternatives(schema_of(schema), body.kind(), of);
  check(body, of, "");
}

bool matches(std::string_view pattern, std::string_view path, std::string* id) {
  const size_t at = pattern.find(kId);
  if (at == std::string_view::npos) return pattern == path;
  const std::string_view before = pattern.substr(0, at), behind = pattern.substr(at + kId.size());
  if (path.size() <= before.size() + behind.size() || !path.starts_with(before) || !path.ends_with(behind))
    return false;
  const std::string_view given = path.substr(before.size(), path.size() - before.size() - behind.size());
  if (!behind.empty() && given.find('/') != std::string_view::npos) return false;
  if (id != nullptr) *id = given;
  return true;
}

}  // namespace kdelta::server
