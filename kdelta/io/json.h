// JSON values for small documents from untrusted places (configs, requests, tool schemas) and for what we write
// ourselves. Object members keep the order of the text. The parser library is named in json_events.cc alone; this
// header is cheap to include.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "kdelta/core/error.h"

namespace kdelta {

struct JsonMember;

class Json {
 public:
  enum class Kind : uint8_t { null, boolean, integer, real, string, array, object };
  using Array = std::vector<Json>;
  using Object = std::vector<JsonMember>;

  Json();  // null
  Json(std::nullptr_t);
  template <std::same_as<bool> T>  // a template, so that no pointer turns into a boolean
  Json(T value) : value_(value) {}
  template <std::integral T>
  requires(!std::same_as<T, bool> && !std::same_as<T, char>) Json(T value)
      : value_(in_range(std::in_range<int64_t>(value), static_cast<int64_t>(value))) {}
  Json(double value);
  Json(std::string value);
  Json(std::string_view value);
  Json(const char* value);
  Json(Array items);
  Json(Object members);
  // A number without fraction or exponent that 64 bits do not hold: kind() is real, the digits survive writing.
  static Json huge_integer(std::string digits);
  // Defined where JsonMember is complete.
  ~Json();
  Json(const Json&);
  Json(Json&&) noexcept;
  Json& operator=(const Json&);
  Json& operator=(Json&&) noexcept;

  Kind kind() const;
  bool is_null() const { return kind() == Kind::null; }
  // Each throws Error(invalid_argument) when kind() is another one. For input that may be wrong use JsonReader, which
  // says where.
  bool boolean() const;
  int64_t integer() const;
  double number() const;  // real or integer
  const std::string& string() const;
  const Array& array() const;
  const Object& object() const;
  Array& array();
  Object& object();

  // The member of that name; nullptr when there is none or this is no object. Linear: for objects with few members.
  const Json* find(std::string_view key) const;
  // Replaces the member of that name or appends it; this must be an object.
  void set(std::string_view key, Json value);

  bool operator==(const Json& other) const;

 private:
  struct HugeInteger {
    std::string digits;
    bool operator==(const HugeInteger&) const = default;
  };
  friend class JsonWriter;

  static int64_t in_range(bool fits, int64_t value);

  std::variant<std::nullptr_t, bool, int64_t, double, HugeInteger, std::string, Array, Object> value_;
};

// "null", "boolean", "integer", "number", "string", "array", "object": the words of JSON Schema.
const char* kind_name(Json::Kind kind);

struct JsonMember {
  std::string key;
  Json value;
  bool operator==(const JsonMember&) const = default;
};

// Where a text comes from: the first words of every message, and the code of the Error.
struct JsonSource {
  std::string name;  // "models/x/config.json", "request"
  ErrorCode code = ErrorCode::bad_file;
};

// What a text may cost. A tree takes about 50 bytes a value, so max_values bounds memory where max_bytes does not
// ("[[],[],...").
struct JsonLimits {
  int64_t max_bytes = int64_t{8} << 20;
  int64_t max_values = int64_t{1} << 20;
  int max_depth =
      64;  // of nested arrays and objects; deeper than any config or tool schema seen, shallow for any stack
};

// Throws Error(source.code) with source, place and reason: malformed text, invalid UTF-8, a key twice in one object, a
// number beyond double, more than the limits allow.
Json parse_json(std::string_view text, const JsonSource& source, const JsonLimits& limits = {});
// A whole file; messages start with its path.
Json parse_json_file(const std::string& path, const JsonLimits& limits = {});

// Numbers and escapes as Python's json.dumps(..., ensure_ascii=False) writes them: prompts hold such text, and a model
// was trained on those characters. Doubles round-trip; 1.0 stays 1.0.
struct JsonStyle {
  bool spaced = false;     // ", " and ": " in place of "," and ":"
  bool sort_keys = false;  // at every depth, by code point
  int indent = 0;          // above 0: every item on a line of its own, that many spaces deeper than its container
};
// Throws Error(invalid_argument) on a string that is not UTF-8, on NaN and infinity.
std::string json_text(const Json& value, const JsonStyle& style = {});
// Appends `text` quoted and escaped; same error.
void append_json_string(std::string& out, std::string_view text);

// For messages: `string "abc"`, `integer 3`, `array of 2`. Long and unprintable text is shortened and escaped.
std::string describe(const Json& value);
// Text of a file made safe to show: control characters and invalid UTF-8 as \xNN, at most 200 bytes.
std::string printable(std::string_view text);
// True when every byte belongs to a well-formed UTF-8 sequence (no surrogates, no overlong forms, at most U+10FFFF).
bool is_utf8(std::string_view text);

}  // namespace kdelta
