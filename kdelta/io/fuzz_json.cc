// Any text as JSON: refused with an Error whose message is UTF-8, or what was read is written and read back as the same
// value, in every style, and a reader can walk all of it.
#include "kdelta/core/check.h"
#include "kdelta/io/json_reader.h"

namespace {

using namespace kdelta;

// Asks for every field as every type.
void walk(const JsonReader& reader) {
  for (const std::string& key : reader.keys()) {
    const auto attempt = [](auto read) {
      try {
        read();
      } catch (const Error& e) {
        KDELTA_CHECK(e.code() == ErrorCode::bad_file && is_utf8(e.what()), e.what());
      }
    };
    attempt([&] { reader.get<int64_t>(key); });
    attempt([&] { reader.get<double>(key); });
    attempt([&] { reader.get<bool>(key); });
    attempt([&] { reader.get<std::string>(key); });
    attempt([&] { reader.get<std::vector<int64_t>>(key); });
    attempt([&] { reader.get<std::vector<std::string>>(key); });
    attempt([&] { walk(reader.get<JsonReader>(key)); });
    attempt([&] {
      for (const JsonReader& item : reader.get<std::vector<JsonReader>>(key)) walk(item);
    });
  }
  reader.unread();
  for (const std::string& key : reader.keys()) reader.raw(key);
  KDELTA_CHECK(reader.unread().empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const Json value = parse_json({reinterpret_cast<const char*>(data), size}, {"fuzz"});
    for (const JsonStyle style : {JsonStyle{}, JsonStyle{.spaced = true}}) {
      const std::string text = json_text(value, style);
      KDELTA_CHECK(parse_json(text, {"again"}, {.max_bytes = 1 << 30}) == value, text);
    }
    const std::string sorted = json_text(value, {.sort_keys = true});
    KDELTA_CHECK(json_text(parse_json(sorted, {"sorted"}, {.max_bytes = 1 << 30}), {.sort_keys = true}) == sorted,
                 sorted);
    if (value.kind() == Json::Kind::object) walk(JsonReader(value, {"fuzz"}));
  } catch (const Error& e) {
    KDELTA_CHECK(e.code() == ErrorCode::bad_file && is_utf8(e.what()), e.what());
  }
  return 0;
}
