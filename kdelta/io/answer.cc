#include "kdelta/io/answer.h"

namespace kdelta {

void AnswerDelta::append(const AnswerDelta& more) {
  reasoning += more.reasoning;
  content += more.content;
  calls.insert(calls.end(), more.calls.begin(), more.calls.end());
  pieces.insert(pieces.end(), more.pieces.begin(), more.pieces.end());
}

CallPiece& AnswerDelta::piece(int64_t index) {
  if (pieces.empty() || pieces.back().index != index || pieces.back().ended)
    pieces.push_back({.index = index, .id = {}, .name = {}, .arguments = {}});
  return pieces.back();
}

}  // namespace kdelta
