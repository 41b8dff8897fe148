#include "kdelta/io/grammar/matcher.h"

#include <algorithm>

namespace kdelta::grammar {

void Matcher::follow(std::span<const int32_t> tokens) {
  masker_->tidy();
  if (epoch_ != masker_->epoch()) {
    epoch_ = masker_->epoch();
    tokens_.clear();
    states_.assign(1, masker_->start());
  }
  const auto shared = std::mismatch(tokens_.begin(), tokens_.end(), tokens.begin(), tokens.end()).first;
  tokens_.erase(shared, tokens_.end());
  states_.resize(tokens_.size() + 1);
  for (size_t i = tokens_.size(); i < tokens.size(); ++i) {
    const Masker::State next = masker_->next(state(), tokens[i]);
    states_.push_back(next);
    tokens_.push_back(tokens[i]);
  }
}

int64_t Matcher::accepted(std::span<const int32_t> before, std::span<const int32_t> tokens) {
  follow(before);
  Masker::State state = this->state();
  for (size_t i = 0; i < tokens.size(); ++i) {
    state = masker_->next(state, tokens[i]);
    if (state == Automaton::kDead) return static_cast<int64_t>(i);
  }
  return std::ssize(tokens);
}

}  // namespace kdelta::grammar
