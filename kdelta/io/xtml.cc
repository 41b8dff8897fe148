#include "kdelta/io/xtml.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "kdelta/core/check.h"
#include "kdelta/io/chat_prompt.h"

namespace kdelta {
namespace {

constexpr std::string_view kOpen = "<|open|>", kClose = "<|close|>", kSep = "<|sep|>", kEnd = "<|end_of_msg|>";

// Undoes the escaping of attribute values, in reverse order: &quot; first, then &amp;.
std::string unescaped(std::string_view value) {
  std::string out;
  for (size_t i = 0; i < value.size();) {
    const std::string_view rest = value.substr(i);
    if (rest.starts_with("&amp;"))
      out += '&', i += 5;
    else if (rest.starts_with("&quot;"))
      out += '"', i += 6;
    else
      out += value[i++];
  }
  return out;
}

// A string is bare text, never JSON.
bool is_of_type(const Json& value, std::string_view type) {
  return value.kind() != Json::Kind::string && type == xtml_type(value);
}

// One level less than the default: whoever gets the arguments, an object around this value, can read them with it.
constexpr int kMaxDepth = JsonLimits{}.max_depth - 1;

// False when the text is no JSON value of that type.
bool parse_value(const std::string& text, std::string_view type, Json& value) {
  try {
    value = parse_json(text, {"argument", ErrorCode::invalid_argument},
                       {.max_bytes = std::ssize(text), .max_depth = kMaxDepth});
    return is_of_type(value, type);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::invalid_argument) throw;
    return false;
  }
}

// The inside of a JSON string.
std::string escaped(std::string_view text) {
  std::string out;
  append_json_string(out, text);
  return out.substr(1, out.size() - 2);
}

int required_special(const Tokenizer& tokenizer, std::string_view name) {
  const int id = tokenizer.special_id(name);
  if (id < 0) fail(ErrorCode::unsupported, "the tokenizer has no special token ", name);
  return id;
}

}  // namespace

XtmlParser::XtmlParser(const Tokenizer& tokenizer, bool thinking)
    : tokenizer_(&tokenizer),
      open_(required_special(tokenizer, kOpen)),
      close_(required_special(tokenizer, kClose)),
      sep_(required_special(tokenizer, kSep)),
      end_(required_special(tokenizer, kEnd)),
      part_(thinking ? Part::think : Part::response) {}

AnswerDelta XtmlParser::parse(const Tokenizer& tokenizer, bool thinking, std::span<const int32_t> ids) {
  XtmlParser parser(tokenizer, thinking);
  AnswerDelta all;
  for (const int32_t id : ids) all.append(parser.feed(id));
  all.append(parser.finish());
  return all;
}

AnswerDelta XtmlParser::feed(int id) {
  AnswerDelta out;
  const std::string_view bytes = tokenizer_->token_bytes(id);
  if (ended_) return out;
  if (!tokenizer_->is_special(id)) {
    text(stream_.feed(bytes), out);
    return out;
  }
  text(stream_.finish(), out);
  if (id == open_)
    begin_tag(Tag::opening, out);
  else if (id == close_)
    begin_tag(Tag::closing, out);
  else if (id == sep_)
    end_tag(out);
  else if (id == end_) {
    drop_tag(out);
    enter(Part::between, out);
    ended_ = true;
  }
  return out;
}

AnswerDelta XtmlParser::finish() {
  AnswerDelta out;
  if (std::exchange(ended_, true)) return out;
  text(stream_.finish(), out);
  drop_tag(out);
  if (call_.open) fail_call(out);
  return out;
}

void XtmlParser::text(std::string_view text, AnswerDelta& out) {
  if (tag_ != Tag::none) {
    tag_text_ += text;
  } else if (call_.open) {
    call_.source += text;
    if (call_.value_kind == Value::argument && call_.type == "string")
      tell(escaped(text), out);
    else if (call_.value_kind != Value::none)
      call_.value += text;
    else if (!is_blank(text))
      call_.failed = true;
  } else if (part_ == Part::think) {
    out.reasoning += text;
  } else if (part_ == Part::response || !is_blank(text)) {  // white space between elements is layout
    out.content += text;
  }
}

void XtmlParser::begin_tag(Tag tag, AnswerDelta& out) {
  abandon_tag(out);
  tag_ = tag;
}

// A tag that never reached its <|sep|> was text.
void XtmlParser::abandon_tag(AnswerDelta& out) {
  if (tag_ == Tag::none) return;
  const std::string_view mark = tag_ == Tag::opening ? kOpen : kClose;
  tag_ = Tag::none;
  text(str(mark, std::exchange(tag_text_, {})), out);
}

// A tag that the end of the answer cuts off is no content: its mark never, what follows the mark only when no element
// begins so.
void XtmlParser::drop_tag(AnswerDelta& out) {
  if (std::exchange(tag_, Tag::none) == Tag::none) return;
  const std::string rest = std::exchange(tag_text_, {});
  if (!may_become_element(rest)) text(rest, out);
}

bool XtmlParser::may_become_element(std::string_view text) {
  constexpr std::string_view kNames[] = {"think", "response", "tools", "call", "argument", "json", "message"};
  const std::string_view name = text.substr(0, text.find(' '));
  const bool whole = name.size() < text.size();
  return std::any_of(std::begin(kNames), std::end(kNames),
                     [&](std::string_view known) { return whole ? name == known : known.starts_with(name); });
}

void XtmlParser::end_tag(AnswerDelta& out) {
  if (tag_ == Tag::none) return;
  const Tag tag = std::exchange(tag_, Tag::none);
  const std::string content = std::exchange(tag_text_, {});
  const std::string source = str(tag == Tag::opening ? kOpen : kClose, content, kSep);
  Element element;
  if (parse_element(content, element) &&
      (tag == Tag::opening ? open_part(element, source, out) : close_part(element, out)))
    return;
  if (!call_.open) {
    if (tag == Tag::opening || !is_of_call(element)) text(source, out);
    return;
  }
  call_.source += source;
  if (!is_of_call(element))
    call_.failed = true;
  else if (tag == Tag::opening)
    begin_value(element, out);
  else
    end_value(out);
  if (tag == Tag::closing && element.name == "call") end_call(out);
}

bool XtmlParser::parse_element(std::string_view text, Element& element) {
  const size_t name_end = std::min(text.find(' '), text.size());
  element.name = text.substr(0, name_end);
  text.remove_prefix(name_end);
  while (!text.empty()) {
    const size_t equals = text.find("=\"");
    if (text[0] != ' ' || equals == std::string_view::npos) return false;
    const size_t quote = text.find('"', equals + 2);
    if (quote == std::string_view::npos) return false;
    element.attributes.emplace_back(text.substr(1, equals - 1), unescaped(text.substr(equals + 2, quote - equals - 2)));
    text.remove_prefix(quote + 1);
  }
  return true;
}

std::string XtmlParser::Element::attribute(std::string_view key) const {
  for (const auto& [name_of, value] : attributes)
    if (name_of == key) return value;
  return {};
}

// Elements inside a call, and its own closing tag.
bool XtmlParser::is_of_call(const Element& e) {
  return e.name == "argument" || e.name == "json" || e.name == "call";
}

bool XtmlParser::open_part(const Element& e, const std::string& source, AnswerDelta& out) {
  if (e.name == "think") return enter(Part::think, out), true;
  if (e.name == "response") return enter(Part::response, out), true;
  if (e.name == "tools") return enter(Part::tools, out), true;
  if (e.name != "call") return false;
  enter(Part::tools, out);
  call_.open = true;
  call_.name = e.attribute("tool");
  call_.failed = call_.name.empty();
  call_.source = source;
  if (call_.failed) return true;
  call_.index = announced_++;
  out.piece(call_.index).name = call_.name;
  return true;
}

bool XtmlParser::close_part(const Element& e, AnswerDelta& out) {
  const auto close = [&](Part part) {
    if (part_ == part) enter(Part::between, out);
    return true;
  };
  if (e.name == "think") return close(Part::think);
  if (e.name == "response") return close(Part::response);
  if (e.name == "tools") return close(Part::tools);
  if (e.name != "message") return false;
  ended_ = true;
  return close(part_);
}

void XtmlParser::begin_value(const Element& e, AnswerDelta& out) {
  end_value(out);
  call_.value_kind = e.name == "json" ? Value::json : Value::argument;
  call_.key = e.attribute("key");
  call_.type = e.attribute("type");
  if (call_.value_kind == Value::argument && call_.type == "string" && begin_member(call_.key, out)) tell("\"", out);
}

void XtmlParser::enter(Part part, AnswerDelta& out) {
  end_call(out);
  part_ = part;
}

// Of a call that has failed nothing more is told: what was stays the beginning of an object.
void XtmlParser::tell(std::string_view arguments, AnswerDelta& out) {
  if (call_.failed || arguments.empty()) return;
  call_.arguments += arguments;
  out.piece(call_.index).arguments += arguments;
}

bool XtmlParser::begin_member(const std::string& key, AnswerDelta& out) {
  // What has been told cannot be taken back, so a second value of a key has no place.
  if (std::find(call_.keys.begin(), call_.keys.end(), key) != call_.keys.end()) call_.failed = true;
  if (call_.failed) return false;
  tell(call_.keys.empty() ? "{" : ",", out);
  call_.keys.push_back(key);
  std::string name;
  append_json_string(name, key);
  tell(name + ":", out);
  return true;
}

void XtmlParser::end_value(AnswerDelta& out) {
  const Value kind = std::exchange(call_.value_kind, Value::none);
  if (kind == Value::none) return;
  if (kind == Value::argument && call_.type == "string") return tell("\"", out);
  const std::string text = std::exchange(call_.value, {});
  Json value;
  if (!parse_value(text, kind == Value::json ? "object" : call_.type, value))
    call_.failed = true;
  else if (kind == Value::argument && begin_member(call_.key, out))
    tell(json_text(value), out);
  else if (kind == Value::json)
    for (const JsonMember& m : value.object())
      if (begin_member(m.key, out)) tell(json_text(m.value), out);
}

void XtmlParser::end_call(AnswerDelta& out) {
  if (!call_.open) return;
  end_value(out);
  if (call_.failed) return fail_call(out);
  tell(call_.keys.empty() ? "{}" : "}", out);
  out.piece(call_.index).ended = true;
  out.calls.push_back({{}, std::move(call_.name), std::move(call_.arguments)});
  call_ = {};
}

void XtmlParser::fail_call(AnswerDelta& out) {
  if (!call_.name.empty()) {
    CallPiece& piece = out.piece(call_.index);
    piece.ended = piece.failed = true;
  }
  out.content += std::exchange(call_, {}).source;
}

}  // namespace kdelta
