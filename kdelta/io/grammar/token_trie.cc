#include "kdelta/io/grammar/token_trie.h"

#include <algorithm>

#include "kdelta/core/check.h"
#include "kdelta/io/unicode.h"

namespace kdelta::grammar {

TokenTrie::TokenTrie(std::span<const std::string_view> texts, std::span<const int32_t> special)
    : texts_(texts.begin(), texts.end()), special_(texts.size(), false) {
  for (const int32_t id : special) special_[static_cast<size_t>(id)] = true;
  std::vector<int32_t> order;
  for (int32_t id = 0; id < tokens(); ++id)
    if (const size_t size = text(id).size(); size > 0 && size <= kLongest && !is_special(id)) order.push_back(id);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return text(a) < text(b); });
  nodes_.push_back({});
  std::vector<int32_t> path{0};  // nodes of the text before
  std::string_view before;
  int32_t last = -1;
  const auto close = [&](size_t depth) {
    for (; path.size() > depth + 1; path.pop_back())
      nodes_[static_cast<size_t>(path.back())].end = static_cast<int32_t>(nodes_.size());
  };
  for (const int32_t id : order) {
    const std::string_view t = text(id);
    longest_ = std::max(longest_, t.size());
    if (t == before) {
      if (twins_.empty()) twins_.assign(texts_.size(), -1);
      twins_[static_cast<size_t>(last)] = id;
      last = id;
      continue;
    }
    close(static_cast<size_t>(std::mismatch(t.begin(), t.end(), before.begin(), before.end()).first - t.begin()));
    for (size_t i = path.size() - 1; i < t.size(); ++i) {
      path.push_back(static_cast<int32_t>(nodes_.size()));
      nodes_.push_back({.depth = static_cast<uint16_t>(i + 1), .byte = static_cast<uint8_t>(t[i])});
    }
    nodes_.back().token = id;
    before = t;
    last = id;
  }
  close(0);
  nodes_[0].end = static_cast<int32_t>(nodes_.size());
  find_prose();
}

namespace {

bool is_prose(std::string_view text) {
  if (text.size() > TokenTrie::kProse) return false;
  for (size_t i = 0; i < text.size();) {
    const Char c = decode_char(text, i);
    if (c.state == Utf8::invalid) return false;
    if (c.state == Utf8::valid && (c.code < 0x20 || c.code == '"' || c.code == '\\' || c.code == 0x7F)) return false;
    i += static_cast<size_t>(c.bytes);
  }
  return true;
}

}  // namespace

void TokenTrie::find_prose() {
  std::string path;
  std::vector<int32_t> parent(nodes_.size(), 0), line(longest_ + 1, 0);
  for (size_t i = 1; i < nodes_.size(); ++i) {
    Node& n = nodes_[i];
    path.resize(n.depth - 1u);
    path += static_cast<char>(n.byte);
    n.prose = is_prose(path);
    parent[i] = line[n.depth - 1u];
    line[n.depth] = static_cast<int32_t>(i);
  }
  for (size_t i = nodes_.size(); i-- > 1;)
    if (!nodes_[i].prose) nodes_[static_cast<size_t>(parent[i])].prose = false;
  prose_.assign((texts_.size() + 31) / 32, 0);
  for (const Node& n : nodes_)
    for (int32_t t = n.prose ? n.token : -1; t >= 0; t = twin(t))
      prose_[static_cast<size_t>(t) / 32] |= uint32_t{1} << t % 32;
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
  return static_cast<int64_t>(nodes_.size() * sizeof(Node) + twins_.size() * 4 +
                              texts_.size() * sizeof(std::string_view) + special_.size() / 8);
}

}  // namespace kdelta::grammar
