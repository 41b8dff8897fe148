// The answers of the chat formats (chat.h) around a content that a grammar describes: what is thought before is free
// text, the format's marks are special tokens, and tool calls may follow. Text never contains a mark.
#pragma once

#include "kdelta/io/chat.h"
#include "kdelta/io/grammar/grammar.h"

namespace kdelta::grammar {

// A function that may be called.
struct ChatTool {
  std::string name;
  std::string parameters = {};  // text of a JSON Schema of the arguments; empty: any object
};

struct ChatAnswer {
  bool thinking = true;              // xtml: the answer begins inside the thinking part; k2: it may begin with one
  bool calls = false;                // tool calls may follow the content, or come in its place
  bool must_call = false;            // there is at least one, and no content
  bool one_call = false;             // there is at most one
  std::vector<ChatTool> tools = {};  // that calls may be of; empty: calls of any name
};

// From where chat_prompt()'s generation prompt ends to where the ending ids stand. Throws Error(unsupported) when the
// tokenizer lacks the format's special tokens, Error(invalid_argument) naming the tool whose parameters cannot be said.
//
// Arguments under a schema: in k2's calls a JSON text, in xtml's an element each, in the order of `properties`; where
// the schema does not name all members, one json element holds them.
ExprId chat_answer(Grammar& out, const Tokenizer& tokenizer, ChatFormat format, const ChatAnswer& answer,
                   ExprId content);

}  // namespace kdelta::grammar
