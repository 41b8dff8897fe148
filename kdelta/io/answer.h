// An answer taken apart, as the parsers of the chat formats give it piece by piece.
#pragma once

#include <string>
#include <vector>

#include "kdelta/io/chat.h"

namespace kdelta {

// What was added to an answer. A call comes whole, when it is closed; its arguments are the text of a JSON object.
struct AnswerDelta {
  std::string reasoning, content;
  std::vector<ToolCall> calls;  // xtml: without ids, the server makes them; k2: with the ids that the model spelled

  bool empty() const { return reasoning.empty() && content.empty() && calls.empty(); }
  void append(const AnswerDelta& more);
  bool operator==(const AnswerDelta&) const = default;
};

}  // namespace kdelta
