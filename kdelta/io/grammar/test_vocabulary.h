// Small vocabularies for tests, and what a mask says about them.
#pragma once

#include <memory>

#include "kdelta/io/grammar/gbnf.h"
#include "kdelta/io/grammar/matcher.h"

namespace kdelta::grammar {

// Owns the texts that a trie looks into. The tokens of `specials` come last.
struct TestVocabulary {
  explicit TestVocabulary(std::vector<std::string> ordinary, int32_t specials = 0) : texts(std::move(ordinary)) {
    std::vector<int32_t> special;
    for (int32_t i = 0; i < specials; ++i) {
      special.push_back(static_cast<int32_t>(texts.size()));
      texts.push_back("<|" + std::to_string(i) + "|>");
    }
    views.assign(texts.begin(), texts.end());
    trie = std::make_shared<const TokenTrie>(views, special);
  }
  // Every byte, so that nothing is without a token.
  static std::vector<std::string> all_bytes() {
    std::vector<std::string> out;
    for (int b = 0; b < 256; ++b) out.push_back(std::string(1, static_cast<char>(b)));
    return out;
  }
  std::shared_ptr<Masker> masker(const Grammar& g, const MaskerLimits& limits = {}) const {
    return std::make_shared<Masker>(std::make_shared<const Program>(g), trie, limits);
  }
  std::vector<uint32_t> bits() const {
    return std::vector<uint32_t>(static_cast<size_t>(mask_words(static_cast<int64_t>(texts.size()))), 0xABABABABu);
  }

  std::vector<std::string> texts;
  std::vector<std::string_view> views;
  std::shared_ptr<const TokenTrie> trie;
};

inline bool has(std::span<const uint32_t> bits, int32_t token) {
  return (bits[static_cast<size_t>(token) / 32] >> token % 32 & 1) != 0;
}

// Whether whole texts are read by a grammar.
class Recogniser {
 public:
  explicit Recogniser(const Grammar& g) : automaton_(std::make_shared<const Program>(g)) {}
  bool reads(std::string_view text) {
    Automaton::State s = automaton_.start();
    for (const char c : text) s = automaton_.next(s, static_cast<uint8_t>(c));
    return automaton_.accepts(s);
  }

 private:
  Automaton automaton_;
};

}  // namespace kdelta::grammar
