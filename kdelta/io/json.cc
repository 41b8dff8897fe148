#include "kdelta/io/json.h"

#include <algorithm>
#include <charconv>

#include "kdelta/core/check.h"
#include "kdelta/io/json_events.h"
#include "kdelta/io/mapped_file.h"

namespace kdelta {
namespace {

[[noreturn]] void wrong_kind(Json::Kind want, const Json& have) {
  fail(ErrorCode::invalid_argument, "json: expected ", kind_name(want), ", found ", describe(have));
}

}  // namespace

const char* kind_name(Json::Kind kind) {
  switch (kind) {
    case Json::Kind::null:
      return "null";
    case Json::Kind::boolean:
      return "boolean";
    case Json::Kind::integer:
      return "integer";
    case Json::Kind::real:
      return "number";
    case Json::Kind::string:
      return "string";
    case Json::Kind::array:
      return "array";
    case Json::Kind::object:
      return "object";
  }
  KDELTA_UNREACHABLE("kind", kind);
}

Json::Json() = default;
Json::Json(std::nullptr_t) {}
Json::Json(double value) : value_(value) {}
Json::Json(std::string value) : value_(std::move(value)) {}
Json::Json(std::string_view value) : value_(std::string(value)) {}
Json::Json(const char* value) : value_(std::string(value)) {}
Json::Json(Array items) : value_(std::move(items)) {}
Json::Json(Object members) : value_(std::move(members)) {}

Json::~Json() = default;
Json::Json(const Json&) = default;
Json::Json(Json&&) noexcept = default;
Json& Json::operator=(const Json&) = default;
Json& Json::operator=(Json&&) noexcept = default;

Json Json::huge_integer(std::string digits) {
  Json out;
  out.value_ = HugeInteger{std::move(digits)};
  return out;
}

int64_t Json::in_range(bool fits, int64_t value) {
  KDELTA_CHECK(fits, "an integer for JSON exceeds 64 bits");
  return value;
}

Json::Kind Json::kind() const {
  constexpr Kind kKinds[] = {Kind::null, Kind::boolean, Kind::integer, Kind::real,
                             Kind::real, Kind::string,  Kind::array,   Kind::object};  // the variant's order
  return kKinds[value_.index()];
}

bool Json::boolean() const {
  if (const auto* p = std::get_if<bool>(&value_)) return *p;
  wrong_kind(Kind::boolean, *this);
}

int64_t Json::integer() const {
  if (const auto* p = std::get_if<int64_t>(&value_)) return *p;
  wrong_kind(Kind::integer, *this);
}

double Json::number() const {
  if (const auto* p = std::get_if<int64_t>(&value_)) return static_cast<double>(*p);
  if (const auto* p = std::get_if<double>(&value_)) return *p;
  if (const auto* p = std::get_if<HugeInteger>(&value_)) {
    double value = 0;
    std::from_chars(p->digits.data(), p->digits.data() + p->digits.size(), value);
    return value;
  }
  wrong_kind(Kind::real, *this);
}

const std::string& Json::string() const {
  if (const auto* p = std::get_if<std::string>(&value_)) return *p;
  wrong_kind(Kind::string, *this);
}

const Json::Array& Json::array() const {
  if (const auto* p = std::get_if<Array>(&value_)) return *p;
  wrong_kind(Kind::array, *this);
}

const Json::Object& Json::object() const {
  if (const auto* p = std::get_if<Object>(&value_)) return *p;
  wrong_kind(Kind::object, *this);
}

Json::Array& Json::array() {
  return const_cast<Array&>(std::as_const(*this).array());
}
Json::Object& Json::object() {
  return const_cast<Object&>(std::as_const(*this).object());
}

const Json* Json::find(std::string_view key) const {
  if (const auto* members = std::get_if<Object>(&value_))
    for (const JsonMember& m : *members)
      if (m.key == key) return &m.value;
  return nullptr;
}

void Json::set(std::string_view key, Json value) {
  Object& members = object();
  for (JsonMember& m : members) {
    if (m.key == key) {
      m.value = std::move(value);
      return;
    }
  }
  members.push_back({std::string(key), std::move(value)});
}

bool Json::operator==(const Json& other) const {
  return value_ == other.value_;
}

namespace {

// Grows the tree. Open containers are held by value on a stack and moved into their parent when they close.
class TreeBuilder final : public JsonEvents {
 public:
  explicit TreeBuilder(const JsonSource& source) : source_(source) {}
  Json take() { return std::move(root_); }

  void scalar(Json&& value) override { place(std::move(value)); }
  void key(std::string&& name) override { open_.back().object().push_back({std::move(name), Json()}); }
  void begin_object() override { open_.emplace_back(Json::Object()); }
  void begin_array() override { open_.emplace_back(Json::Array()); }
  void end_array() override { close(); }
  void end_object() override {
    refuse_duplicates(open_.back().object());
    close();
  }

 private:
  void place(Json value) {
    if (open_.empty())
      root_ = std::move(value);
    else if (open_.back().kind() == Json::Kind::array)
      open_.back().array().push_back(std::move(value));
    else
      open_.back().object().back().value = std::move(value);
  }
  void close() {
    Json done = std::move(open_.back());
    open_.pop_back();
    place(std::move(done));
  }
  // Sorting views costs n log n for any number of members; a lookup per key would let a large object cost n^2.
  void refuse_duplicates(const Json::Object& members) const {
    std::vector<std::string_view> keys;
    keys.reserve(members.size());
    for (const JsonMember& m : members) keys.push_back(m.key);
    std::ranges::sort(keys);
    const auto twice = std::ranges::adjacent_find(keys);
    if (twice != keys.end()) fail(source_.code, source_.name, ": ", path_of(*twice), ": the key appears twice");
  }
  // "layers[2].name", from the innermost open object.
  std::string path_of(std::string_view key) const {
    std::string path;
    for (size_t i = 0; i < open_.size(); ++i) {
      if (open_[i].kind() == Json::Kind::array) {
        path += str("[", open_[i].array().size(), "]");
      } else {
        if (!path.empty()) path += '.';
        path += printable(i + 1 < open_.size() ? open_[i].object().back().key : key);
      }
    }
    return path;
  }

  const JsonSource& source_;
  std::vector<Json> open_;
  Json root_;
};

}  // namespace

Json parse_json(std::string_view text, const JsonSource& source, const JsonLimits& limits) {
  TreeBuilder builder(source);
  parse_json_events(text, source, limits, builder);
  return builder.take();
}

Json parse_json_file(const std::string& path, const JsonLimits& limits) {
  return parse_json(read_text_file(path, limits.max_bytes), {path}, limits);
}

std::string describe(const Json& value) {
  switch (value.kind()) {
    case Json::Kind::null:
      return "null";
    case Json::Kind::boolean:
      return value.boolean() ? "true" : "false";
    case Json::Kind::integer:
    case Json::Kind::real:
      return str(kind_name(value.kind()), " ", json_text(value));
    case Json::Kind::string:
      return str("string \"", printable(value.string()), "\"");
    case Json::Kind::array:
      if (value.array().size() == 1 && value.array().front().kind() == Json::Kind::string)
        return "array of " + describe(value.array().front());
      return str("array of ", value.array().size());
    case Json::Kind::object:
      return str("object of ", value.object().size());
  }
  KDELTA_UNREACHABLE("kind", value.kind());
}

}  // namespace kdelta
