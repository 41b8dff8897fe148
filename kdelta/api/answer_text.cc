#include "kdelta/api/answer_text.h"

#include "kdelta/core/check.h"

namespace kdelta {

AnswerReader::AnswerReader(const Tokenizer& tokenizer, ChatFormat format, bool thinking) {
  switch (format) {
    case ChatFormat::xtml:
      xtml_.emplace(tokenizer, thinking);
      return;
    case ChatFormat::k2:
      k2_.emplace(tokenizer);
      return;
  }
  KDELTA_UNREACHABLE("chat format", format);
}

AnswerDelta AnswerReader::feed(std::span<const int32_t> ids) {
  AnswerDelta all;
  for (const int32_t id : ids) all.append(feed(id));
  return all;
}

void append_part(std::vector<AnswerPart>& parts, AnswerPart part) {
  using Kind = AnswerPart::Kind;
  if (part.kind != Kind::call && part.text.empty()) return;
  if (parts.empty() || parts.back().kind != part.kind) return parts.push_back(std::move(part));
  AnswerPart& last = parts.back();
  if (part.kind != Kind::call) {
    last.text += part.text;
  } else if (last.call.index == part.call.index && !last.call.ended) {
    last.call.arguments += part.call.arguments;
    last.call.ended = part.call.ended;
    last.call.failed = part.call.failed;
  } else {
    parts.push_back(std::move(part));
  }
}

AnswerText::AnswerText(const Tokenizer* tokenizer, const GenerateOptions& options)
    : stop_(options.stop), stops_(options.stop) {
  if (tokenizer != nullptr)
    detokenizer_.emplace(*tokenizer, options.show_specials ? Specials::show : Specials::skip);
  else if (!options.stop.empty())
    fail(ErrorCode::unsupported, "stop strings need a tokenizer");
}

AnswerText::AnswerText(const Tokenizer& tokenizer, const GenerateOptions& options, bool thinking)
    : stop_(options.stop),
      reader_(AnswerReader(tokenizer, ChatEncoder(tokenizer).format(), thinking)),
      stops_(options.stop) {}

std::string AnswerText::stopped_by() const {
  return stopped() ? stop_[static_cast<size_t>(stops_.stopped_by())] : "";
}

void AnswerText::feed(int32_t id, bool ends, std::vector<AnswerPart>& out) {
  if (reader_)
    take(reader_->feed(id), out);
  else if (detokenizer_ && !ends)
    append_part(out, {.kind = AnswerPart::Kind::text, .text = stops_.feed(detokenizer_->feed(id))});
}

void AnswerText::finish(std::vector<AnswerPart>& out) {
  if (reader_) {
    if (!stopped()) take(reader_->finish(), out);
    append_part(out, {.kind = AnswerPart::Kind::content, .text = stops_.finish()});
  } else if (detokenizer_) {
    append_part(out, {.kind = AnswerPart::Kind::text, .text = stops_.feed(detokenizer_->finish())});
    append_part(out, {.kind = AnswerPart::Kind::text, .text = stops_.finish()});
  }
}

void AnswerText::take(AnswerDelta delta, std::vector<AnswerPart>& out) {
  using Kind = AnswerPart::Kind;
  const auto tell = [&](CallPiece& p) {
    append_part(out, {.kind = Kind::call,
                      .text = {},
                      .call = {.index = p.index,
                               .id = std::move(p.id),
                               .name = std::move(p.name),
                               .arguments = std::move(p.arguments),
                               .ended = p.ended,
                               .failed = p.failed}});
  };
  append_part(out, {.kind = Kind::reasoning, .text = std::move(delta.reasoning)});
  // A call that failed has ended before its spelling comes.
  for (CallPiece& p : delta.pieces)
    if (p.failed) tell(p);
  append_part(out, {.kind = Kind::content, .text = stops_.feed(delta.content)});
  std::erase_if(delta.pieces, [](const CallPiece& p) { return p.failed; });
  if (delta.pieces.empty() || stopped()) return;
  if (!stop_.empty()) {
    append_part(out, {.kind = Kind::content, .text = stops_.finish()});
    stops_ = StopStrings(stop_);
  }
  for (CallPiece& p : delta.pieces) tell(p);
}

}  // namespace kdelta
