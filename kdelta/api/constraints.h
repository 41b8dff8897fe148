// Constraints of requests, compiled: each once, however many requests name it, over one tree of the vocabulary.
#pragma once

#include <list>
#include <memory>
#include <mutex>

#include "kdelta/api/options.h"
#include "kdelta/io/grammar/grammar.h"
#include "kdelta/io/tokenizer.h"
#include "kdelta/runtime/token_constraint.h"

namespace kdelta {

namespace grammar {
class Masker;
class TokenTrie;
}  // namespace grammar

// The texts that the constraint allows; without a tokenizer those of its content alone. Throws Error(invalid_argument)
// naming the field, what was found in it and where; Error(unsupported) for `chat` when the tokenizer is not a chat's.
grammar::Grammar grammar_of(const Constraint& constraint, const Tokenizer* tokenizer);

class Constraints {
 public:
  // `tokenizer` must outlive this and whatever it makes.
  explicit Constraints(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  // For one request that ends with one of `ends`. Compiles what it has not seen lately. Any number of threads may call
  // this; what it gives goes to the thread of one engine. Throws what grammar_of() does.
  std::shared_ptr<runtime::TokenConstraint> make(const Constraint& constraint, std::vector<int32_t> ends);

 private:
  struct Entry {
    std::string key;
    std::shared_ptr<grammar::Masker> masker;
  };
  std::shared_ptr<grammar::Masker> masker_of(const Constraint& constraint);

  const Tokenizer& tokenizer_;
  std::mutex mutex_;
  std::shared_ptr<const grammar::TokenTrie> trie_;  // made when it is first needed
  std::list<Entry> entries_;                        // the one used last is the first
};

}  // namespace kdelta
