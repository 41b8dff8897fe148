#include "kdelta/io/k2_answer.h"

#include <utility>

#include "kdelta/core/check.h"
#include "kdelta/io/chat_prompt.h"

namespace kdelta {
namespace {

constexpr std::string_view kCallBegin = "<|tool_call_begin|>", kArgumentBegin = "<|tool_call_argument_begin|>";

constexpr std::string_view kBlank = " \t\r\n";

std::string_view trimmed(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(kBlank), text.size()));
  return text.substr(0, text.find_last_not_of(kBlank) + 1);
}

// "functions.a.b:3" is the function a.b.
std::string_view function_name(std::string_view id) {
  if (id.starts_with("functions.")) id.remove_prefix(10);
  const size_t colon = id.rfind(':');
  const bool numbered = colon != std::string_view::npos && colon + 1 < id.size() &&
                        id.find_first_not_of("0123456789", colon + 1) == std::string_view::npos;
  return numbered ? id.substr(0, colon) : id;
}

bool is_json_object(const std::string& text) {
  try {
    return parse_json(text, {"arguments", ErrorCode::invalid_argument}, {.max_bytes = std::ssize(text)}).kind() ==
           Json::Kind::object;
  } catch (const Error& e) {
    if (e.code() != ErrorCode::invalid_argument) throw;
    return false;
  }
}

}  // namespace

K2Parser::K2Parser(const Tokenizer& tokenizer)
    : tokenizer_(&tokenizer),
      section_begin_(tokenizer.special_id("<|tool_calls_section_begin|>")),
      section_end_(tokenizer.special_id("<|tool_calls_section_end|>")),
      call_begin_(tokenizer.special_id(kCallBegin)),
      argument_begin_(tokenizer.special_id(kArgumentBegin)),
      call_end_(tokenizer.special_id("<|tool_call_end|>")),
      think_(tokenizer.special_id("<think>")),
      think_end_(tokenizer.special_id("</think>")),
      end_(tokenizer.special_id("<|im_end|>")) {
  if (end_ < 0) fail(ErrorCode::unsupported, "the tokenizer has no special token <|im_end|>");
}

AnswerDelta K2Parser::parse(const Tokenizer& tokenizer, std::span<const int32_t> ids) {
  K2Parser parser(tokenizer);
  AnswerDelta all;
  for (const int32_t id : ids) all.append(parser.feed(id));
  all.append(parser.finish());
  return all;
}

AnswerDelta K2Parser::feed(int id) {
  AnswerDelta out;
  const std::string_view bytes = tokenizer_->token_bytes(id);
  if (ended_) return out;
  if (!tokenizer_->is_special(id)) {
    text(stream_.feed(bytes), out);
    return out;
  }
  text(stream_.finish(), out);
  if (id == call_begin_) {
    enter(Part::call_id, out);
  } else if (id == argument_begin_) {
    if (part_ == Part::call_id)
      announce(out);
    else
      text(bytes, out);  // a second one, or one of no call: text, which no JSON object survives
  } else if (id == call_end_) {
    if (in_call()) enter(Part::section, out);
  } else if (id == section_begin_) {
    enter(Part::section, out);
  } else if (id == section_end_ || id == think_end_) {
    enter(Part::content, out);
  } else if (id == think_) {
    enter(Part::reasoning, out);
  } else if (id == end_) {
    enter(Part::content, out);
    ended_ = true;
  }
  return out;
}

AnswerDelta K2Parser::finish() {
  AnswerDelta out;
  if (std::exchange(ended_, true)) return out;
  text(stream_.finish(), out);
  if (part_ == Part::call_id) {
    // The mark of a call that was only announced is no content, and a word behind it is its ID.
    if (trimmed(id_).find_first_of(kBlank) != std::string_view::npos) out.content += id_;
  } else if (in_call()) {
    fail_call(out);
  }
  return out;
}

void K2Parser::text(std::string_view text, AnswerDelta& out) {
  switch (part_) {
    case Part::reasoning:
      out.reasoning += text;
      return;
    case Part::call_id:
      id_ += text;
      return;
    case Part::arguments:
      arguments_ += text;
      tell(arguments_.find_last_not_of(" \t\r\n}") + 1, out);
      return;
    case Part::section:
      if (is_blank(text)) return;  // white space between calls is layout
      [[fallthrough]];
    case Part::content:
      out.content += text;
      return;
  }
  KDELTA_UNREACHABLE("part of an answer", part_);
}

void K2Parser::enter(Part next, AnswerDelta& out) {
  if (in_call()) {
    const std::string_view name = function_name(trimmed(id_));
    if (is_blank(arguments_) && part_ == Part::arguments) arguments_ = "{}";
    if (part_ == Part::arguments && !name.empty() && is_json_object(arguments_)) {
      tell(arguments_.find_last_not_of(kBlank) + 1, out);
      out.piece(announced_ - 1).ended = true;
      open_ = false;
      out.calls.push_back({std::string(trimmed(id_)), std::string(name), std::string(trimmed(arguments_))});
    } else {
      fail_call(out);
    }
    id_.clear();
    arguments_.clear();
  }
  part_ = next;
}

void K2Parser::announce(AnswerDelta& out) {
  part_ = Part::arguments;
  told_ = 0;
  const std::string_view name = function_name(trimmed(id_));
  if (name.empty()) return;
  open_ = true;
  CallPiece& piece = out.piece(announced_++);
  piece.id = trimmed(id_);
  piece.name = name;
}

// Up to `end`, without blanks in front. The brace that closes the object waits for the end of the call: one that fails
// was never told whole.
void K2Parser::tell(size_t end, AnswerDelta& out) {
  const size_t begin = arguments_.find_first_not_of(kBlank);
  if (!open_ || begin == std::string::npos || arguments_[begin] != '{') return;
  told_ = std::max(told_, begin);
  if (end <= told_) return;
  out.piece(announced_ - 1).arguments += std::string_view(arguments_).substr(told_, end - told_);
  told_ = end;
}

void K2Parser::fail_call(AnswerDelta& out) {
  if (std::exchange(open_, false)) {
    CallPiece& piece = out.piece(announced_ - 1);
    piece.ended = piece.failed = true;
  }
  out.content += str(kCallBegin, id_);
  if (part_ == Part::arguments) out.content += str(kArgumentBegin, arguments_);
}

}  // namespace kdelta
