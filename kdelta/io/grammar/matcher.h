// One answer that follows a grammar: it is told the tokens so far, whole, and finds out itself what is new, what was
// taken back (drafts that were not accepted) and what was forgotten meanwhile.
#pragma once

#include "kdelta/io/grammar/masker.h"

namespace kdelta::grammar {

class Matcher {
 public:
  explicit Matcher(std::shared_ptr<Masker> masker) : masker_(std::move(masker)) {}

  // Goes to the state behind `tokens`, from the longest beginning that they share with the ones before. Throws as
  // Masker::next() does.
  void follow(std::span<const int32_t> tokens);
  // How many of `tokens`, one after the other, may follow behind `before`.
  int64_t accepted(std::span<const int32_t> before, std::span<const int32_t> tokens);

  // Of the tokens followed: they are a whole text; nothing matches them.
  bool accepts() const { return masker_->accepts(state()); }
  bool dead() const { return state() == Automaton::kDead; }
  // As Masker::mask().
  bool mask(std::span<uint32_t> bits) { return masker_->mask(state(), bits); }

 private:
  Masker::State state() const { return states_.back(); }

  std::shared_ptr<Masker> masker_;
  int64_t epoch_ = -1;
  std::vector<int32_t> tokens_;
  std::vector<Masker::State> states_{Automaton::kDead};  // before the first token and behind each
};

}  // namespace kdelta::grammar
