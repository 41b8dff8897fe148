// The answer of Kimi K2 and Kimi-Linear as it is generated: token ids in, reasoning, content and tool calls out. The
// form is chat.h's k2: text, then <|tool_calls_section_begin|>, calls of <|tool_call_begin|> ID
// <|tool_call_argument_begin|> JSON <|tool_call_end|>, <|tool_calls_section_end|>, <|im_end|>; what <think> and
// </think> enclose, where a vocabulary has them, is reasoning. It works on ids, so tokens that the model merely spells
// stay text. No text of the answer is lost: what has no place in the structure becomes content, all but the beginning
// of a call that the end of the answer cuts off in its ID.
#pragma once

#include <span>
#include <string>

#include "kdelta/io/answer.h"
#include "kdelta/io/detokenizer.h"

namespace kdelta {

class K2Parser {
 public:
  // Starts where the generation prompt of chat.h ends. `tokenizer` must outlive this; throws Error(unsupported) when it
  // lacks <|im_end|>. Without the other special tokens all of an answer is content.
  explicit K2Parser(const Tokenizer& tokenizer);

  // A call is named by its ID, functions.NAME:NUMBER; of another ID the part in front of a :NUMBER is the name. Blank
  // arguments are {}. The next call, the end of the section and <|im_end|> end a call that was left open. A call
  // without a name, one whose arguments are no JSON object, and one that the end of generation cuts off in its
  // arguments become content in their own spelling. Cut off in its ID it is dropped; text that could not have become an
  // ID stays, without the mark. A call is announced when its ID is known, its arguments come as they are generated once
  // they begin like an object. Other special tokens are skipped. After <|im_end|> ids are ignored.
  AnswerDelta feed(int id);
  // The end of generation.
  AnswerDelta finish();
  bool ended() const { return ended_; }

  // The deltas of all the ids joined.
  static AnswerDelta parse(const Tokenizer& tokenizer, std::span<const int32_t> ids);

 private:
  enum class Part : uint8_t { content, reasoning, section, call_id, arguments };

  void text(std::string_view text, AnswerDelta& out);
  bool in_call() const { return part_ == Part::call_id || part_ == Part::arguments; }
  // Ends a call that is open and goes on in `next`.
  void enter(Part next, AnswerDelta& out);
  void announce(AnswerDelta& out);
  void tell(size_t end, AnswerDelta& out);
  void fail_call(AnswerDelta& out);

  const Tokenizer* tokenizer_;
  int section_begin_, section_end_, call_begin_, argument_begin_, call_end_, think_, think_end_, end_;
  Utf8Stream stream_;
  Part part_ = Part::content;
  std::string id_, arguments_;
  int64_t announced_ = 0;
  bool open_ = false;  // announced_ - 1 has not ended
  size_t told_ = 0;    // of arguments_, blanks in front included
  bool ended_ = false;
};

}  // namespace kdelta
