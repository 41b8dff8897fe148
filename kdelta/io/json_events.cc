#include "kdelta/io/json_events.h"

#include <nlohmann/json.hpp>

#include "kdelta/core/check.h"

namespace kdelta {
namespace {

using Library = nlohmann::json;

// Passes the parser's events on and enforces the limits.
class Adapter {
 public:
  Adapter(const JsonSource& source, const JsonLimits& limits, JsonEvents& events)
      : source_(source), limits_(limits), events_(events) {}

  bool null() { return scalar(nullptr); }
  bool boolean(bool value) { return scalar(value); }
  bool number_integer(int64_t value) { return scalar(value); }
  bool number_unsigned(uint64_t value) {
    return scalar(std::in_range<int64_t>(value) ? Json(value) : Json::huge_integer(std::to_string(value)));
  }
  bool number_float(double value, const std::string& text) {
    const bool is_integer = text.find_first_of(".eE") == std::string::npos;
    return scalar(is_integer ? Json::huge_integer(text) : Json(value));
  }
  bool string(std::string& value) { return scalar(std::move(value)); }
  bool binary(Library::binary_t& value) { KDELTA_UNREACHABLE("binary value of size", value.size()); }
  bool key(std::string& name) {
    events_.key(std::move(name));
    return true;
  }
  bool start_object(size_t) {
    enter();
    events_.begin_object();
    return true;
  }
  bool end_object() {
    --depth_;
    events_.end_object();
    return true;
  }
  bool start_array(size_t) {
    enter();
    events_.begin_array();
    return true;
  }
  bool end_array() {
    --depth_;
    events_.end_array();
    return true;
  }
  bool parse_error(size_t position, const std::string&, const Library::exception& error) {
    std::string_view what = error.what();  // "[json.exception.parse_error.101] parse error at line 1, ...: reason"
    if (const size_t end = what.find("] "); end != what.npos) what.remove_prefix(end + 2);
    fail(source_.code, source_.name, ": byte ", position, ": ", printable(what));
  }

 private:
  bool scalar(Json value) {
    count();
    events_.scalar(std::move(value));
    return true;
  }
  void enter() {
    count();
    if (++depth_ > limits_.max_depth)
      fail(source_.code, source_.name, ": arrays and objects nest deeper than ", limits_.max_depth);
  }
  void count() {
    if (++values_ > limits_.max_values) fail(source_.code, source_.name, ": more than ", limits_.max_values, " values");
  }

  const JsonSource& source_;
  const JsonLimits& limits_;
  JsonEvents& events_;
  int depth_ = 0;
  int64_t values_ = 0;
};

}  // namespace

void parse_json_events(std::string_view text, const JsonSource& source, const JsonLimits& limits, JsonEvents& events) {
  if (std::cmp_greater(text.size(), limits.max_bytes))
    fail(source.code, source.name, ": ", text.size(), " bytes of JSON, at most ", limits.max_bytes, " expected");
  // The library takes a zero byte for the end of the text and would ignore what follows.
  if (const size_t zero = text.find('\0'); zero != text.npos)
    fail(source.code, source.name, ": byte ", zero + 1, ": a zero byte");
  Adapter adapter(source, limits, events);
  Library::sax_parse(text.begin(), text.end(), &adapter);
}

}  // namespace kdelta
