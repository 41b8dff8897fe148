// The texts of a vocabulary as a tree of their bytes, in the order in which a walk meets them: what begins alike is
// read once for all tokens, and what a grammar refuses is skipped with everything behind it.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "kdelta/io/tokenizer.h"

namespace kdelta::grammar {

// Texts of tokens as a tree.
struct TextTree {
  struct Node {
    int32_t end = 0;      // the first node that is not below this one
    int32_t token = -1;   // whose text ends here
    uint16_t depth = 0;   // bytes up to here
    uint8_t byte = 0;     // the last of them
    bool shared = false;  // further tokens have this text
  };
  struct Text {
    std::string_view text;
    int32_t token;
  };
  // Tokens of one text are chained by `next`, which has a place for each token of the vocabulary.
  TextTree(std::vector<Text> texts, std::vector<int32_t>& next);

  std::vector<Node> nodes;  // node 0 is the empty text
};

// Most of a vocabulary is prose: characters that a string of JSON holds as they are. Every token is at most kMost of
// them and a tail: so a state that takes any character, and leads to one state with each, is asked for the tails alone.
class Prose {
 public:
  static constexpr int kMost = 24;
  static bool is_prose(uint32_t code) { return code >= 0x20 && code != '"' && code != '\\' && code != 0x7F; }

  explicit Prose(std::span<const TextTree::Text> texts, size_t vocabulary);

  // The tokens of at most that many characters of prose and no tail; by id, as a mask.
  std::span<const uint32_t> whole(int characters) const { return whole_[static_cast<size_t>(characters)]; }
  // The tails behind that many characters.
  const TextTree& tails(int characters) const { return tails_[static_cast<size_t>(characters)]; }
  // The next token with as many characters and the same tail, -1 when there is none.
  std::span<const int32_t> next() const { return next_; }
  int64_t bytes() const;

 private:
  std::vector<std::vector<uint32_t>> whole_;
  std::vector<TextTree> tails_;
  std::vector<int32_t> next_;
};

class TokenTrie {
 public:
  static constexpr size_t kLongest = 0xFFFF;

  // `texts` by token id. Without a place in the tree: tokens of no bytes, of more than kLongest, and those that
  // `special` names.
  TokenTrie(std::span<const std::string_view> texts, std::span<const int32_t> special);
  // Of a tokenizer's ordinary tokens; it must outlive this.
  static TokenTrie of(const Tokenizer& tokenizer);

  const TextTree& tree() const { return tree_; }
  // The next token of the same text, -1 when there is none.
  std::span<const int32_t> twins() const { return twins_; }
  int32_t tokens() const { return static_cast<int32_t>(texts_.size()); }
  bool is_special(int32_t token) const { return special_[static_cast<size_t>(token)]; }
  std::string_view text(int32_t token) const { return texts_[static_cast<size_t>(token)]; }
  size_t longest() const { return longest_; }
  const Prose& prose() const { return prose_; }
  int64_t bytes() const;

 private:
  std::vector<TextTree::Text> placed() const;

  std::vector<std::string_view> texts_;
  std::vector<bool> special_;
  size_t longest_ = 0;
  std::vector<int32_t> twins_;
  TextTree tree_;
  Prose prose_;
};

}  // namespace kdelta::grammar
