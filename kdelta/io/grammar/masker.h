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
  // A node of one of the vocabulary's trees: of its texts, or of the tails behind so many characters of prose.
  struct Place {
    int32_t tails, node;  // tails: kTexts for the texts
  };
  static constexpr int32_t kTexts = -1;
  // Bits of tokens that stay within the rule, and the places below which the text leaves it.
  struct Local {
    std::vector<uint32_t> bits;
    std::vector<Place> exits;
  };
  // A whole mask: its words, or, when few of them have bits, those. Many states have the same one: it is kept once.
  struct Word {
    uint32_t at, bits;
    bool operator==(const Word&) const = default;
  };
  struct Whole {
    std::vector<uint32_t> bits;
    std::vector<Word> words;
    bool empty() const { return bits.empty() && words.empty(); }
    bool operator==(const Whole&) const = default;
  };
  // Behind one character of prose.
  struct Behind {
    State state = Automaton::kDead;  // after each of them; kDead when there is no such state
    bool none = false;               // no character of prose, nor the beginning of one, may follow
  };

  void reset();
  void check_work();
  void set_specials(std::span<const int32_t> nodes, std::span<uint32_t> bits) const;
  void walk(State from, Place below, std::span<uint32_t> bits, std::vector<Place>* exits);

  Behind behind_most(State state, std::vector<uint8_t>& exceptions);
  const Behind& behind_any(State state);
  bool follow_prose(State state);
  void set_prose(std::span<uint32_t> bits, std::vector<Place>* exits);
  bool mostly_prose(State state, std::span<uint32_t> bits);

  const Local& local(std::span<const int32_t> nodes);
  void by_frames(std::span<const Automaton::Position> positions, std::span<uint32_t> bits);
  void make(State state, std::span<uint32_t> bits);
  const Whole& keep(std::span<const uint32_t> bits);

  std::shared_ptr<const Program> program_;
  std::shared_ptr<const TokenTrie> trie_;
  MaskerLimits limits_;
  size_t words_;
  std::unique_ptr<Automaton> automaton_;
  std::atomic<int64_t> noted_bytes_{0};
  int64_t epoch_ = 0, mask_bytes_ = 0, masks_made_ = 0, work_begin_ = 0;
  std::unordered_map<State, Local> locals_;
  std::unordered_map<State, const Whole*> whole_of_;
  std::unordered_multimap<uint64_t, Whole> wholes_;  // by hash
  std::unordered_map<State, Behind> behind_;
  std::vector<State> chain_;  // behind 0, 1, 2, ... characters of prose
  std::vector<State> path_;   // of a walk, by depth
  std::vector<int32_t> nodes_;
};

}  // namespace kdelta::grammar
