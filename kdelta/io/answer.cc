#include "kdelta/io/answer.h"

namespace kdelta {

void AnswerDelta::append(const AnswerDelta& more) {
  reasoning += more.reasoning;
  content += more.content;
  calls.insert(calls.end(), more.calls.begin(), more.calls.end());
}

}  // namespace kdelta
