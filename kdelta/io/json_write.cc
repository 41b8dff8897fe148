// Writing: the text form of a Json, quoting, and making foreign text safe to show.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "kdelta/core/check.h"
#include "kdelta/io/json.h"
#include "kdelta/io/unicode.h"

namespace kdelta {
namespace {

constexpr char kHex[] = "0123456789abcdef";
// The writer recurses. Parsed values are at most JsonLimits::max_depth deep, and what we build ourselves is flat.
constexpr int kMaxWriteDepth = 1000;

// Python's repr: shortest digits that round-trip, an exponent below 1e-4 and from 1e16, always a point or an exponent.
void append_double(std::string& out, double value) {
  if (!std::isfinite(value))
    fail(ErrorCode::invalid_argument, "json: ", value, " cannot be written, expected a finite number");
  std::array<char, 64> text;
  const double magnitude = std::fabs(value);
  const bool fixed = value == 0 || (magnitude >= 1e-4 && magnitude < 1e16);
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value,
                                 fixed ? std::chars_format::fixed : std::chars_format::scientific)
                       .ptr;
  const std::string_view digits(text.data(), static_cast<size_t>(end - text.data()));
  out += digits;
  if (fixed && digits.find('.') == digits.npos) out += ".0";
}

}  // namespace

bool is_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const Char c = decode_char(text, i);
    if (c.state != Utf8::valid) return false;
    i += static_cast<size_t>(c.bytes);
  }
  return true;
}

std::string printable(std::string_view text) {
  constexpr size_t kMaxBytes = 200;  // a tensor name has at most about 100
  std::string out;
  for (size_t i = 0; i < text.size();) {
    if (out.size() >= kMaxBytes) return out + "...";
    const Char c = decode_char(text, i);
    const bool control = c.code < 0x20 || (c.code >= 0x7f && c.code < 0xa0);  // C0, DEL, C1: a terminal would obey them
    if (c.state != Utf8::valid || control) {
      const auto byte = static_cast<uint8_t>(text[i]);
      out += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
      i += 1;
    } else {
      out += text.substr(i, static_cast<size_t>(c.bytes));
      i += static_cast<size_t>(c.bytes);
    }
  }
  return out;
}

void append_json_string(std::string& out, std::string_view text) {
  if (!is_utf8(text)) fail(ErrorCode::invalid_argument, "json: string \"", printable(text), "\" is not UTF-8");
  out += '"';
  for (const char c : text) {
    constexpr std::string_view kSpecial = "\"\\\b\f\n\r\t", kLetter = "\"\\bfnrt";
    if (const size_t i = kSpecial.find(c); i != kSpecial.npos) {
      out += '\\';
      out += kLetter[i];
    } else if (static_cast<uint8_t>(c) < 0x20) {
      out += "\\u00";
      out += kHex[c >> 4];
      out += kHex[c & 15];
    } else {
      out += c;
    }
  }
  out += '"';
}

class JsonWriter {
 public:
  explicit JsonWriter(const JsonStyle& style) : style_(style) {}
  std::string take() { return std::move(out_); }

  void write(const Json& value) {
    switch (value.kind()) {
      case Json::Kind::null:
        out_ += "null";
        return;
      case Json::Kind::boolean:
        out_ += value.boolean() ? "true" : "false";
        return;
      case Json::Kind::integer:
        out_ += std::to_string(value.integer());
        return;
      case Json::Kind::real:
        if (const auto* huge = std::get_if<Json::HugeInteger>(&value.value_))
          out_ += huge->digits;
        else
          append_double(out_, value.number());
        return;
      case Json::Kind::string:
        append_json_string(out_, value.string());
        return;
      case Json::Kind::array:
        write_array(value.array());
        return;
      case Json::Kind::object:
        write_object(value.object());
        return;
    }
    KDELTA_UNREACHABLE("kind", value.kind());
  }

 private:
  void write_array(const Json::Array& items) {
    enter('[');
    for (size_t i = 0; i < items.size(); ++i) {
      begin_item(i);
      write(items[i]);
    }
    leave(']', items.empty());
  }
  void write_object(const Json::Object& members) {
    std::vector<const JsonMember*> order;
    for (const JsonMember& m : members) order.push_back(&m);
    if (style_.sort_keys)
      std::ranges::stable_sort(order, {}, [](const JsonMember* m) -> std::string_view { return m->key; });
    enter('{');
    for (size_t i = 0; i < order.size(); ++i) {
      begin_item(i);
      append_json_string(out_, order[i]->key);
      out_ += style_.spaced || style_.indent > 0 ? ": " : ":";
      write(order[i]->value);
    }
    leave('}', order.empty());
  }
  void enter(char bracket) {
    ++depth_;
    KDELTA_CHECK(depth_ <= kMaxWriteDepth, "JSON to write nests deeper than ", kMaxWriteDepth);
    out_ += bracket;
  }
  void leave(char bracket, bool empty) {
    --depth_;
    if (!empty) new_line();
    out_ += bracket;
  }
  void begin_item(size_t i) {
    if (i > 0) out_ += style_.spaced && style_.indent == 0 ? ", " : ",";
    new_line();
  }
  void new_line() {
    if (style_.indent == 0) return;
    out_ += '\n';
    out_.append(static_cast<size_t>(depth_ * style_.indent), ' ');
  }

  JsonStyle style_;
  std::string out_;
  int depth_ = 0;
};

std::string json_text(const Json& value, const JsonStyle& style) {
  JsonWriter writer(style);
  writer.write(value);
  return writer.take();
}

}  // namespace kdelta
