// An answer taken apart, as the parsers of the chat formats give it piece by piece.
#pragma once

#include <string>
#include <vector>

#include "kdelta/io/chat.h"

namespace kdelta {

// What was added to a call while it is generated. The arguments of all its pieces joined are those of the call, once it
// has ended well. One that fails was announced too early: its spelling becomes content, and what was said of it here
// never is the text of a JSON object.
struct CallPiece {
  int64_t index = 0;      // among the calls that were announced, those that fail included
  std::string id, name;   // in its first piece; see AnswerDelta::calls about ids
  std::string arguments;  // more of the text of a JSON object
  bool ended = false, failed = false;
  bool operator==(const CallPiece&) const = default;
};

// What was added to an answer. A call comes whole, when it is closed; its arguments are the text of a JSON object.
struct AnswerDelta {
  std::string reasoning, content;
  std::vector<ToolCall> calls;  // xtml: without ids, the server makes them; k2: with the ids that the model spelled
  std::vector<CallPiece> pieces = {};  // the same calls as they come

  bool empty() const { return reasoning.empty() && content.empty() && calls.empty() && pieces.empty(); }
  void append(const AnswerDelta& more);
  // The piece of call `index` that is still open at the end of `pieces`.
  CallPiece& piece(int64_t index);
  // Says the same: whatever pieces its calls came in.
  bool operator==(const AnswerDelta& other) const {
    return reasoning == other.reasoning && content == other.content && calls == other.calls;
  }
};

}  // namespace kdelta
