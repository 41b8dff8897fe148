// The answers of the chat formats (chat.h) around a content that a grammar describes: what is thought before is free
// text, the format's marks are special tokens, and tool calls may follow. Text never contains a mark.
#pragma once

#include "kdelta/io/chat.h"
#include "kdelta/io/grammar/grammar.h"

namespace kdelta::grammar {

struct ChatAnswer {
  bool thinking = true;  // xtml: the answer begins inside the thinking part; k2: it may begin with one
  bool calls = false;    // tool calls may follow the content, or come in its place
};

// From where chat_prompt()'s generation prompt ends to where the ending ids stand. Throws Error(unsupported) when the
// tokenizer lacks the format's special tokens.
ExprId chat_answer(Grammar& out, const Tokenizer& tokenizer, ChatFormat format, const ChatAnswer& answer,
                   ExprId content);

}  // namespace kdelta::grammar
