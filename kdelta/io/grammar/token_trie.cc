#include "kdelta/io/grammar/token_trie.h"

#include <algorithm>

#include "kdelta/core/check.h"
#include "kdelta/io/unicode.h"

namespace kdelta::grammar {

TextTree::TextTree(std::vector<Text> texts, std::vector<int32_t>& next) {
  std::ranges::stable_sort(texts, {}, &Text::text);
  nodes.push_back({});
  std::vector<int32_t> path{0};  // nodes of the text before
  std::string_view before;
  int32_t last = -1;
  const auto close = [&](size_t depth) {
    for (; path.size() > depth + 1; path.pop_back())
      nodes[static_cast<size_t>(path.back())].end = static_cast<int32_t>(nodes.size());
  };
  for (const auto& [t, token] : texts) {
    if (last >= 0 && t == before) {
      next[static_cast<size_t>(last)] = token;
      nodes.back().shared = true;
      last = token;
      continue;
    }
    close(static_cast<size_t>(std::mismatch(t.begin(), t.end(), before.begin(), before.end()).first - t.begin()));
    for (size_t i = path.size() - 1; i < t.size(); ++i) {
      path.push_back(static_cast<int32_t>(nodes.size()));
      nodes.push_back({.depth = static_cast<uint16_t>(i + 1), .byte = static_cast<uint8_t>(t[i])});
    }
    nodes.back().token = token;
    before = t;
    last = token;
  }
  close(0);
  nodes[0].end = static_cast<int32_t>(nodes.size());
}

Prose::Prose(std::span<const TextTree::Text> texts, size_t vocabulary) : next_(vocabulary, -1) {
  whole_.assign(kMost + 1, std::vector<uint32_t>((vocabulary + 31) / 32, 0));
  std::vector<std::vector<TextTree::Text>> tails(kMost + 1);
  for (const auto& [text, token] : texts) {
    size_t at = 0, characters = 0;
    while (at < text.size() && characters < kMost) {
      const Char c = decode_char(text, at);
      if (c.state != Utf8::valid || !is_prose(c.code)) break;
      at += static_cast<size_t>(c.bytes);
      ++characters;
    }
    const auto t = static_cast<uint32_t>(token);
    if (at < text.size())
      tails[characters].push_back({text.substr(at), token});
    else
      whole_[characters][t / 32] |= uint32_t{1} << t % 32;
  }
  for (size_t n = 1; n <= kMost; ++n)
    for (size_t w = 0; w < whole_[n].size(); ++w) whole_[n][w] |= whole_[n - 1][w];
  for (std::vector<TextTree::Text>& t : tails) tails_.emplace_back(std::move(t), next_);
}

int64_t Prose::bytes() const {
  size_t bytes = next_.size() * 4 + whole_.size() * whole_[0].size() * 4;
  for (const TextTree& t : tails_) bytes += t.nodes.size() * sizeof(TextTree::Node);
  return static_cast<int64_t>(bytes);
}

TokenTrie::TokenTrie(std::span<const std::string_view> texts, std::span<const int32_t> special)
    : texts_(texts.begin(), texts.end()),
      special_([&] {
        std::vector<bool> is(texts.size(), false);
        for (const int32_t id : special) is[static_cast<size_t>(id)] = true;
        return is;
      }()),
      twins_(texts.size(), -1),
      tree_(placed(), twins_),
      prose_(placed(), texts.size()) {
  for (const TextTree::Text& t : placed()) longest_ = std::max(longest_, t.text.size());
}

// Those that have a place in the tree.
std::vector<TextTree::Text> TokenTrie::placed() const {
  std::vector<TextTree::Text> out;
  for (int32_t id = 0; id < tokens(); ++id)
    if (const std::string_view t = text(id); !t.empty() && t.size() <= kLongest && !is_special(id))
      out.push_back({t, id});
  return out;
}

TokenTrie TokenTrie::of(const Tokenizer& tokenizer) {
  std::vector<std::string_view> texts;
  std::vector<int32_t> special;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    texts.push_back(tokenizer.token_bytes(id));
    if (tokenizer.is_special(id)) special.push_back(id);
  }
  return TokenTrie(texts, special);
}

int64_t TokenTrie::bytes() const {
  return static_cast<int64_t>(tree_.nodes.size() * sizeof(TextTree::Node) + twins_.size() * 4 +
                              texts_.size() * sizeof(std::string_view) + special_.size() / 8) +
         prose_.bytes();
}

}  // namespace kdelta::grammar
