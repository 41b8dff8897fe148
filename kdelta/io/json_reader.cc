#include "kdelta/io/json_reader.h"

#include <unordered_set>

namespace kdelta {
namespace {

template <class T>
inline constexpr bool kGivesReaders = false;
template <>
inline constexpr bool kGivesReaders<JsonReader> = true;
template <>
inline constexpr bool kGivesReaders<std::vector<JsonReader>> = true;

}  // namespace

struct JsonReader::Document {
  Json root;
  JsonSource source;
  std::unordered_set<const Json*> read;  // values handed out whole
  std::unordered_set<const Json*>
      entered;  // objects, and arrays of objects, handed out as readers: their fields count singly
};

JsonReader::JsonReader(Json root, JsonSource source)
    : document_(std::make_shared<Document>(Document{std::move(root), std::move(source), {}, {}})),
      object_(&document_->root) {
  if (object_->kind() != Json::Kind::object)
    fail(document_->source.code, document_->source.name, ": ", describe(*object_), ", expected an object");
}

JsonReader::JsonReader(std::shared_ptr<Document> document, const Json* object, std::string path)
    : document_(std::move(document)), object_(object), path_(std::move(path)) {}

JsonReader JsonReader::open(const std::string& path, const JsonLimits& limits) {
  return JsonReader(parse_json_file(path, limits), {path});
}

template <class T>
T JsonReader::get(std::string_view field) const {
  if (member(field) == nullptr) fail(document_->source.code, source(), ": ", path_of(field), ": missing");
  std::optional<T> value = find<T>(field);
  if (!value) refuse(field, "a value");
  return *std::move(value);
}

template <class T>
std::optional<T> JsonReader::find(std::string_view field) const {
  const Json* value = member(field);
  if (value == nullptr) return std::nullopt;
  std::optional<T> out;
  if (!value->is_null()) convert(*value, path_of(field), out.emplace());
  (out && kGivesReaders<T> ? document_->entered : document_->read).insert(value);
  return out;
}

std::optional<Json::Kind> JsonReader::kind(std::string_view field) const {
  const Json* value = member(field);
  return value == nullptr ? std::nullopt : std::optional(value->kind());
}

const Json* JsonReader::raw(std::string_view field) const {
  const Json* value = member(field);
  if (value != nullptr) document_->read.insert(value);
  return value;
}

std::vector<std::string> JsonReader::keys() const {
  std::vector<std::string> out;
  for (const JsonMember& m : object_->object()) out.push_back(m.key);
  return out;
}

std::vector<std::string> JsonReader::unread() const {
  std::vector<std::string> out;
  collect_unread(*object_, path_, out);
  return out;
}

void JsonReader::collect_unread(const Json& object, const std::string& path, std::vector<std::string>& out) const {
  for (const JsonMember& m : object.object()) {
    const std::string field = path.empty() ? printable(m.key) : path + "." + printable(m.key);
    if (document_->read.contains(&m.value)) continue;
    if (!document_->entered.contains(&m.value)) {
      out.push_back(field);
    } else if (m.value.kind() == Json::Kind::object) {
      collect_unread(m.value, field, out);
    } else {
      const Json::Array& items = m.value.array();
      for (size_t i = 0; i < items.size(); ++i) collect_unread(items[i], str(field, "[", i, "]"), out);
    }
  }
}

std::string JsonReader::path_of(std::string_view field) const {
  return path_.empty() ? printable(field) : path_ + "." + printable(field);
}

const std::string& JsonReader::source() const {
  return document_->source.name;
}

void JsonReader::refuse(std::string_view field, std::string_view expected) const {
  const Json* value = member(field);
  wrong(path_of(field), value == nullptr ? Json() : *value, expected);
}

void JsonReader::wrong(const std::string& path, const Json& value, std::string_view expected) const {
  fail(document_->source.code, source(), ": ", path, ": ", describe(value), ", expected ", expected);
}

const Json* JsonReader::member(std::string_view field) const {
  return object_->find(field);
}

template <>
void JsonReader::convert(const Json& value, const std::string& path, bool& out) const {
  if (value.kind() != Json::Kind::boolean) wrong(path, value, "true or false");
  out = value.boolean();
}

template <>
void JsonReader::convert(const Json& value, const std::string& path, int64_t& out) const {
  if (value.kind() != Json::Kind::integer) wrong(path, value, "an integer of 64 bits");
  out = value.integer();
}

template <>
void JsonReader::convert(const Json& value, const std::string& path, double& out) const {
  if (value.kind() != Json::Kind::integer && value.kind() != Json::Kind::real) wrong(path, value, "a number");
  out = value.number();
}

template <>
void JsonReader::convert(const Json& value, const std::string& path, std::string& out) const {
  if (value.kind() != Json::Kind::string) wrong(path, value, "a string");
  out = value.string();
}

template <>
void JsonReader::convert(const Json& value, const std::string& path, JsonReader& out) const {
  if (value.kind() != Json::Kind::object) wrong(path, value, "an object");
  out = JsonReader(document_, &value, path);
}

template <class T>
void JsonReader::convert(const Json& value, const std::string& path, std::vector<T>& out) const {
  if (value.kind() != Json::Kind::array) wrong(path, value, "an array");
  const Json::Array& items = value.array();
  out.reserve(items.size());
  for (size_t i = 0; i < items.size(); ++i) {
    T item{};
    convert(items[i], str(path, "[", i, "]"), item);
    out.push_back(std::move(item));
  }
}

int64_t JsonReader::get_in(std::string_view field, int64_t low, int64_t high) const {
  const int64_t value = get<int64_t>(field);
  if (value < low || value > high) refuse(field, str(low, " to ", high));
  return value;
}

std::optional<int64_t> JsonReader::find_in(std::string_view field, int64_t low, int64_t high) const {
  const std::optional<int64_t> value = find<int64_t>(field);
  if (value && (*value < low || *value > high)) refuse(field, str(low, " to ", high));
  return value;
}

#define KDELTA_JSON_READS(...)                                  \
  template __VA_ARGS__ JsonReader::get(std::string_view) const; \
  template std::optional<__VA_ARGS__> JsonReader::find(std::string_view) const;
KDELTA_JSON_READS(bool)
KDELTA_JSON_READS(int64_t)
KDELTA_JSON_READS(double)
KDELTA_JSON_READS(std::string)
KDELTA_JSON_READS(JsonReader)
KDELTA_JSON_READS(std::vector<int64_t>)
KDELTA_JSON_READS(std::vector<double>)
KDELTA_JSON_READS(std::vector<std::string>)
KDELTA_JSON_READS(std::vector<JsonReader>)
#undef KDELTA_JSON_READS

}  // namespace kdelta
