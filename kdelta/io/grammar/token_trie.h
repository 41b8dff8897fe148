// The texts of a vocabulary as a tree of their bytes, in the order in which a walk meets them: what begins alike is
// read once for all tokens, and what a grammar refuses is skipped with everything behind it.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "kdelta/io/tokenizer.h"

namespace kdelta::grammar {

class TokenTrie {
 public:
  struct Node {
    int32_t end = 0;     // the first node that is not below this one
    int32_t token = -1;  // whose text ends here
    uint16_t depth = 0;  // bytes up to here
    uint8_t byte = 0;    // the last of them
    bool prose = false;  // it and all below are prose
  };
  static constexpr size_t kLongest = 0xFFFF;

  // `texts` by token id. Without a place in the tree: tokens of no bytes, of more than kLongest, and those that
  // `special` names.
  TokenTrie(std::span<const std::string_view> texts, std::span<const int32_t> special);
  // Of a tokenizer's ordinary tokens; it must outlive this.
  static TokenTrie of(const Tokenizer& tokenizer);

  // Node 0 is the empty text.
  const std::vector<Node>& nodes() const { return nodes_; }
  // The next token of the same text as this one, -1 when there is none.
  int32_t twin(int32_t token) const { return twins_.empty() ? -1 : twins_[static_cast<size_t>(token)]; }
  int32_t tokens() const { return static_cast<int32_t>(texts_.size()); }
  bool is_special(int32_t token) const { return special_[static_cast<size_t>(token)]; }
  std::string_view text(int32_t token) const { return texts_[static_cast<size_t>(token)]; }
  size_t longest() const { return longest_; }
  // Most of a vocabulary is prose: characters that a string of JSON holds as they are, at most kProse bytes of them,
  // the last one cut short or not. These are its tokens whose neighbours below are prose too; by id, as a mask.
  static constexpr int kProse = 16;
  std::span<const uint32_t> prose() const { return prose_; }
  int64_t bytes() const;

 private:
  std::vector<Node> nodes_;
  void find_prose();

  std::vector<int32_t> twins_;
  std::vector<uint32_t> prose_;
  std::vector<std::string_view> texts_;
  std::vector<bool> special_;
  size_t longest_ = 0;
};

}  // namespace kdelta::grammar
