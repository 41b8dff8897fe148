// The one way from the ids of an answer to what a reader gets of it, piece by piece: text, or a chat message taken
// apart; stop strings end either.
#pragma once

#include <optional>
#include <span>

#include "kdelta/api/service.h"
#include "kdelta/io/detokenizer.h"
#include "kdelta/io/k2_answer.h"
#include "kdelta/io/stop_strings.h"
#include "kdelta/io/xtml.h"

namespace kdelta {

// Takes a chat's answer apart as its tokens come, in whatever format.
class AnswerReader {
 public:
  AnswerReader(const Tokenizer& tokenizer, ChatFormat format, bool thinking);
  AnswerDelta feed(int32_t id) { return xtml_ ? xtml_->feed(id) : k2_->feed(id); }
  AnswerDelta feed(std::span<const int32_t> ids);
  AnswerDelta finish() { return xtml_ ? xtml_->finish() : k2_->finish(); }

 private:
  std::optional<XtmlParser> xtml_;
  std::optional<K2Parser> k2_;
};

// Joins `part` to the end of `parts`.
void append_part(std::vector<AnswerPart>& parts, AnswerPart part);

class AnswerText {
 public:
  // Plain text; without a tokenizer none, and no stop strings: Error(unsupported). Both must outlive this.
  AnswerText(const Tokenizer* tokenizer, const GenerateOptions& options);
  // A chat's answer. A stop string ends it where its content comes to hold one; reasoning and calls hold none, and none
  // reaches across a call.
  AnswerText(const Tokenizer& tokenizer, const GenerateOptions& options, bool thinking);

  // `ends`: the id ended the answer, so it is no part of a text.
  void feed(int32_t id, bool ends, std::vector<AnswerPart>& out);
  void finish(std::vector<AnswerPart>& out);
  bool stopped() const { return stops_.stopped(); }
  // The stop string that ended it, else "".
  std::string stopped_by() const;

 private:
  void take(AnswerDelta delta, std::vector<AnswerPart>& out);

  const std::vector<std::string>& stop_;
  std::optional<Detokenizer> detokenizer_;
  std::optional<AnswerReader> reader_;
  StopStrings stops_;
};

}  // namespace kdelta
