// The answer of Kimi K3 as it is generated: token ids in, reasoning, content and tool calls out. It works on ids, so
// control tokens that the model merely spells stay text. No text of the answer is lost: what has no place in the
// structure becomes content, all but the beginning of a tag that the end of the answer cuts off.
#pragma once

#include <string>
#include <vector>

#include "kdelta/io/answer.h"
#include "kdelta/io/detokenizer.h"

namespace kdelta {

class XtmlParser {
 public:
  // Starts where the generation prompt of chat.h ends: inside the thinking part, or inside the response. `tokenizer`
  // must outlive this; throws Error(unsupported) when it lacks the format's special tokens.
  XtmlParser(const Tokenizer& tokenizer, bool thinking);

  // Opening a later part ends the one before it, closed or not; closing what is not open changes nothing. A call whose
  // values are not of their declared type, which gives a key twice, or which the end cuts off, becomes content in its
  // own spelling. A call is announced when its name is known; values of strings come as they are generated, others when
  // they are closed. A tag
  // that the end cuts off is dropped; of one that could not have become the format's the text stays, not the mark.
  // Special tokens that are not the format's are skipped. After the message has ended, by its closing tag or
  // <|end_of_msg|>, ids are ignored.
  AnswerDelta feed(int id);
  // The end of generation.
  AnswerDelta finish();
  bool ended() const { return ended_; }

  // The deltas of all the ids joined.
  static AnswerDelta parse(const Tokenizer& tokenizer, bool thinking, std::span<const int32_t> ids);

 private:
  enum class Part : uint8_t { between, think, response, tools };
  enum class Tag : uint8_t { none, opening, closing };
  enum class Value : uint8_t { none, argument, json };
  struct Element {
    std::string name;
    std::vector<std::pair<std::string, std::string>> attributes;
    std::string attribute(std::string_view key) const;
  };
  // A call that is open, with its own spelling in case it fails.
  struct Call {
    bool open = false, failed = false;
    int64_t index = 0;
    std::string name, source;
    std::string arguments;  // as pieces have told it
    std::vector<std::string> keys;
    Value value_kind = Value::none;
    std::string key, type, value;
  };

  static bool parse_element(std::string_view text, Element& element);
  void text(std::string_view text, AnswerDelta& out);
  void begin_tag(Tag tag, AnswerDelta& out);
  void end_tag(AnswerDelta& out);
  void abandon_tag(AnswerDelta& out);
  void drop_tag(AnswerDelta& out);
  static bool may_become_element(std::string_view text);
  // False when the element is none of a message's parts.
  bool open_part(const Element& element, const std::string& source, AnswerDelta& out);
  bool close_part(const Element& element, AnswerDelta& out);
  static bool is_of_call(const Element& element);
  void enter(Part part, AnswerDelta& out);
  void begin_value(const Element& element, AnswerDelta& out);
  void end_value(AnswerDelta& out);
  bool begin_member(const std::string& key, AnswerDelta& out);
  void tell(std::string_view arguments, AnswerDelta& out);
  void end_call(AnswerDelta& out);
  void fail_call(AnswerDelta& out);

  const Tokenizer* tokenizer_;
  int open_, close_, sep_, end_;  // special ids
  Utf8Stream stream_;
  Part part_;
  Tag tag_ = Tag::none;
  std::string tag_text_;
  Call call_;
  int64_t announced_ = 0;
  bool ended_ = false;
};

}  // namespace kdelta
