// Which tokens of a vocabulary may follow in a state of a grammar: bits, by token id. A mask is put together from parts
// that depend on the nodes where the text stands and not on what called their rules, walked once over the whole
// vocabulary and kept; only tokens that reach behind the end of their rule are read again in their context. Whole masks
// are kept too. One thread at a time.
#pragma once

#include <atomic>
#include <memory>
#include <unordered_map>

#include "kdelta/io/grammar/automaton.h"
#include "kdelta/io/grammar/token_trie.h"

namespace kdelta::grammar {

struct MaskerLimits {
  int64_t kept_bytes = int64_t{64} << 20;  // of states and masks; above it they are forgotten and found again
  // Positions of the grammar looked at for one mask or one token. It bounds the time that a hostile grammar can take.
  int64_t work = 30'000'000;
};

// Words of a mask for a vocabulary.
constexpr int64_t mask_words(int64_t vocabulary) {
  return (vocabulary + 31) / 32;
}

class Masker {
 public:
  using State = Automaton::State;

  Masker(std::shared_ptr<const Program> program, std::shared_ptr<const TokenTrie> trie,
         const MaskerLimits& limits = {});

  const TokenTrie& trie() const { return *trie_; }
  const std::string& name() const { return program_->name(); }

  // States are of one epoch: when it has changed, those of before mean nothing.
  int64_t epoch() const { return epoch_; }
  State start() const { return automaton_->start(); }
  bool accepts(State state) const { return automaton_->accepts(state); }
  // kDead when the token may not follow. Throws Error(failed) above the limit of work.
  State next(State state, int32_t token);
  // Sets the bits of all tokens that may follow, clears the others; false when there are none. `bits` may be longer
  // than the vocabulary. Throws as next() does.
  bool mask(State state, std::span<uint32_t> bits);

  // Forgets everything when it has become too much. Called between texts' tokens, never by next() and mask().
  void tidy();
  int64_t kept_bytes() const { return automaton_->bytes() + mask_bytes_; }
  // kept_bytes() of the last tidy(), for any thread.
  int64_t noted_bytes() const { return noted_bytes_.load(std::memory_order_relaxed); }
  int64_t masks_made() const { return masks_made_; }

 private:
  // Bits of tokens that stay within the rule, and the nodes of the trie below which the text leaves it.
  struct Local {
    std::vector<uint32_t> bits;
    std::vector<int32_t> exits;
  };
  // A whole mask: bits, or, when they are few, the tokens.
  struct Whole {
    std::vector<uint32_t> bits;
    std::vector<int32_t> tokens;
  };

  void reset();
  void check_work();
  const Local& local(std::span<const int32_t> nodes);
  void walk(State from, int32_t below, bool prose_is_set, std::span<uint32_t> bits, std::vector<int32_t>* exits);
  bool set_prose(State state, std::span<uint32_t> bits);
  State behind_any_character(State state);
  bool takes_prose(State state);
  void set(std::span<uint32_t> bits, int32_t token) const;
  void make(State state, std::span<uint32_t> bits);
  static bool any(std::span<const uint32_t> bits);
  void keep(State state, std::span<const uint32_t> bits);

  std::shared_ptr<const Program> program_;
  std::shared_ptr<const TokenTrie> trie_;
  MaskerLimits limits_;
  size_t words_;
  std::unique_ptr<Automaton> automaton_;
  std::atomic<int64_t> noted_bytes_{0};
  int64_t epoch_ = 0, mask_bytes_ = 0, masks_made_ = 0, work_begin_ = 0;
  std::unordered_map<State, Local> locals_;
  std::unordered_map<State, Whole> wholes_;
  std::unordered_map<State, int> prose_;  // characters of prose that a state takes, at most TokenTrie::kProse
  std::vector<State> path_;               // of a walk, by depth
  std::vector<int32_t> nodes_;
};

}  // namespace kdelta::grammar
