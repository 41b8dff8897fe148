#include "kdelta/io/grammar/masker.h"

#include <algorithm>
#include <bit>

#include "kdelta/core/check.h"

namespace kdelta::grammar {
namespace {

// Above it the tree of the whole vocabulary is read as fast.
constexpr size_t kMostExceptions = 64;
// A mask of which no more than one word in so many has bits is kept as those words.
constexpr size_t kFewWords = 8;

void set(std::span<uint32_t> bits, int32_t token) {
  const auto t = static_cast<uint32_t>(token);
  bits[t / 32] |= uint32_t{1} << t % 32;
}

// The tokens whose text ends at a node. Few share theirs: the chain of the others is not looked up.
void set(std::span<uint32_t> bits, const TextTree::Node& n, std::span<const int32_t> next) {
  if (n.token < 0) return;
  set(bits, n.token);
  if (!n.shared) return;
  for (int32_t t = next[static_cast<size_t>(n.token)]; t >= 0; t = next[static_cast<size_t>(t)]) set(bits, t);
}

}  // namespace

Masker::Masker(std::shared_ptr<const Program> program, std::shared_ptr<const TokenTrie> trie,
               const MaskerLimits& limits)
    : program_(std::move(program)),
      trie_(std::move(trie)),
      limits_(limits),
      words_(static_cast<size_t>(mask_words(trie_->tokens()))),
      path_(trie_->longest() + 1) {
  reset();
}

void Masker::reset() {
  locals_.clear();
  behind_.clear();
  whole_of_.clear();
  wholes_.clear();
  mask_bytes_ = 0;
  automaton_ = std::make_unique<Automaton>(program_);
  ++epoch_;
}

void Masker::tidy() {
  if (kept_bytes() > limits_.kept_bytes) reset();
  noted_bytes_.store(kept_bytes(), std::memory_order_relaxed);
}

// Looked at rarely enough to cost nothing, and often enough that a step is bounded.
void Masker::check_work() {
  if (automaton_->work() - work_begin_ > limits_.work)
    fail(ErrorCode::failed, name(), ": too ambiguous: more than ", limits_.work, " steps for one token");
  if (kept_bytes() > 4 * limits_.kept_bytes)
    fail(ErrorCode::failed, name(), ": too large: its states take more than ", 4 * limits_.kept_bytes >> 20, " MiB");
}

Masker::State Masker::next(State state, int32_t token) {
  if (token < 0 || token >= trie_->tokens()) return Automaton::kDead;
  work_begin_ = automaton_->work();
  if (trie_->is_special(token)) return automaton_->next_token(state, token);
  const std::string_view text = trie_->text(token);
  if (text.empty()) return Automaton::kDead;
  for (const char c : text) {
    if (state == Automaton::kDead) return state;
    state = automaton_->next(state, static_cast<uint8_t>(c));
    check_work();
  }
  return state;
}

void Masker::set_specials(std::span<const int32_t> nodes, std::span<uint32_t> bits) const {
  for (const int32_t node : nodes)
    for (const Program::TokenEdge& e : program_->tokens(node))
      if (e.token >= 0 && e.token < trie_->tokens()) set(bits, e.token);
}

// Every token below a place, read on from the state behind that place's text.
void Masker::walk(State from, Place below, std::span<uint32_t> bits, std::vector<Place>* exits) {
  const bool texts = below.tails == kTexts;
  const std::vector<TextTree::Node>& nodes = texts ? trie_->tree().nodes : trie_->prose().tails(below.tails).nodes;
  const std::span<const int32_t> next = texts ? trie_->twins() : trie_->prose().next();
  path_[nodes[static_cast<size_t>(below.node)].depth] = from;
  const int32_t end = nodes[static_cast<size_t>(below.node)].end;
  int64_t work = automaton_->work();
  for (int32_t i = below.node + 1; i < end;) {
    const TextTree::Node& n = nodes[static_cast<size_t>(i)];
    const State s = automaton_->next(path_[n.depth - 1u], n.byte);
    if (automaton_->work() != work) {
      work = automaton_->work();
      check_work();
    }
    if (s == Automaton::kDead) {
      i = n.end;
      continue;
    }
    set(bits, n, next);
    path_[n.depth] = s;
    if (exits != nullptr && automaton_->escapes(s) && n.end > i + 1) exits->push_back({below.tails, i});
    ++i;
  }
}

// The state that most characters of prose lead to, and the bytes that begin those that do not.
Masker::Behind Masker::behind_most(State state, std::vector<uint8_t>& exceptions) {
  // What a character of several bytes may be: its first byte, its second one, and how many there are behind the first.
  struct Form {
    uint8_t low, high, second_low, second_high;
    int tail;
  };
  static constexpr Form kForms[] = {{0xC2, 0xDF, 0x80, 0xBF, 1}, {0xE0, 0xE0, 0xA0, 0xBF, 2},
                                    {0xE1, 0xEC, 0x80, 0xBF, 2}, {0xED, 0xED, 0x80, 0x9F, 2},
                                    {0xEE, 0xEF, 0x80, 0xBF, 2}, {0xF0, 0xF0, 0x90, 0xBF, 3},
                                    {0xF1, 0xF3, 0x80, 0xBF, 3}, {0xF4, 0xF4, 0x80, 0x8F, 3}};
  exceptions.clear();
  std::vector<State> ascii;
  for (uint8_t b = 0; b < 0x80; ++b)
    if (Prose::is_prose(b)) ascii.push_back(automaton_->next(state, b));
  std::ranges::sort(ascii);
  Behind out{.none = ascii.back() == Automaton::kDead};
  for (size_t i = 0, most = 0; i < ascii.size();) {
    const auto n = static_cast<size_t>(std::ranges::upper_bound(ascii, ascii[i]) - ascii.begin()) - i;
    if (n > most && ascii[i] != Automaton::kDead) most = n, out.state = ascii[i];
    i += n;
  }
  for (uint8_t b = 0; b < 0x80; ++b)
    if (Prose::is_prose(b) && automaton_->next(state, b) != out.state) exceptions.push_back(b);
  const auto common = [&](State from, uint8_t low, uint8_t high) {
    const State to = automaton_->next(from, low);
    for (int b = low + 1; b <= high && to != Automaton::kDead; ++b)
      if (automaton_->next(from, static_cast<uint8_t>(b)) != to) return Automaton::kDead;
    return to;
  };
  for (const Form& f : kForms)
    for (int lead = f.low; lead <= f.high; ++lead) {
      State at = automaton_->next(state, static_cast<uint8_t>(lead));
      out.none = out.none && at == Automaton::kDead;
      for (int i = 0; i < f.tail && at != Automaton::kDead; ++i)
        at = i == 0 ? common(at, f.second_low, f.second_high) : common(at, 0x80, 0xBF);
      if (at != out.state) exceptions.push_back(static_cast<uint8_t>(lead));
    }
  check_work();
  return out;
}

const Masker::Behind& Masker::behind_any(State state) {
  const auto known = behind_.find(state);
  if (known != behind_.end()) return known->second;
  std::vector<uint8_t> exceptions;
  Behind found = behind_most(state, exceptions);
  if (!exceptions.empty()) found.state = Automaton::kDead;
  return behind_.emplace(state, found).first->second;
}

// Goes on behind the chain. Whether it is where any prose leads, as far as tokens go, and longer prose leads nowhere.
bool Masker::follow_prose(State state) {
  for (;;) {
    // Behind its end a rule goes on in a way that is not known here.
    if (automaton_->escapes(state)) return false;
    chain_.push_back(state);
    if (std::ssize(chain_) > Prose::kMost) return true;
    const Behind& behind = behind_any(state);
    if (behind.state == Automaton::kDead) return behind.none;
    state = behind.state;
  }
}

// All tokens along the chain.
void Masker::set_prose(std::span<uint32_t> bits, std::vector<Place>* exits) {
  const auto longest = static_cast<int32_t>(chain_.size()) - 1;
  const std::span<const uint32_t> whole = trie_->prose().whole(longest);
  for (size_t w = 0; w < words_; ++w) bits[w] |= whole[w];
  for (int32_t n = 0; n <= longest; ++n) walk(chain_[static_cast<size_t>(n)], {n, 0}, bits, exits);
}
// A state that all but a few first characters lead to one chain from: a text, or one that must not be any of some
// words.
bool Masker::mostly_prose(State state, std::span<uint32_t> bits) {
  std::vector<uint8_t> exceptions;
  const Behind behind = behind_most(state, exceptions);
  if (exceptions.size() > kMostExceptions) return false;
  chain_.assign(1, state);
  if (behind.state == Automaton::kDead ? !behind.none : !follow_prose(behind.state)) return false;
  set_prose(bits, nullptr);
  const std::vector<TextTree::Node>& nodes = trie_->tree().nodes;
  for (int32_t i = 1; i < nodes[0].end; i = nodes[static_cast<size_t>(i)].end) {
    const TextTree::Node& first = nodes[static_cast<size_t>(i)];
    if (!std::ranges::binary_search(exceptions, first.byte)) continue;
    for (int32_t below = i; below < first.end; ++below)
      for (int32_t t = nodes[static_cast<size_t>(below)].token; t >= 0; t = trie_->twins()[static_cast<size_t>(t)])
        bits[static_cast<uint32_t>(t) / 32] &= ~(uint32_t{1} << t % 32);
    const State to = automaton_->next(state, first.byte);
    if (to == Automaton::kDead) continue;
    set(bits, first, trie_->twins());
    walk(to, {kTexts, i}, bits, nullptr);
  }
  return true;
}

const Masker::Local& Masker::local(std::span<const int32_t> nodes) {
  const State state = automaton_->local(nodes);
  const auto known = locals_.find(state);
  if (known != locals_.end()) return known->second;
  Local made;
  made.bits.assign(words_, 0);
  set_specials(nodes, made.bits);
  chain_.clear();
  if (follow_prose(state))
    set_prose(made.bits, &made.exits);
  else
    walk(state, {kTexts, 0}, made.bits, &made.exits);
  made.exits.shrink_to_fit();
  mask_bytes_ += std::ssize(made.bits) * 4 + std::ssize(made.exits) * int64_t{sizeof(Place)};
  return locals_.emplace(state, std::move(made)).first->second;
}

void Masker::by_frames(std::span<const Automaton::Position> positions, std::span<uint32_t> bits) {
  for (size_t i = 0; i < positions.size();) {
    const Automaton::Frame frame = positions[i].frame;
    nodes_.clear();
    for (; i < positions.size() && positions[i].frame == frame; ++i) nodes_.push_back(positions[i].node);
    const Local& part = local(nodes_);
    for (size_t w = 0; w < words_; ++w) bits[w] |= part.bits[w];
    if (part.exits.empty()) continue;
    const State behind = automaton_->behind(frame);
    for (const Place& exit : part.exits) walk(behind, exit, bits, nullptr);
    check_work();
  }
}

void Masker::make(State state, std::span<uint32_t> bits) {
  const std::vector<Automaton::Position> positions = automaton_->positions(state);
  if (!mostly_prose(state, bits)) return by_frames(positions, bits);
  nodes_.clear();
  for (const Automaton::Position& p : positions) nodes_.push_back(p.node);
  set_specials(nodes_, bits);
}

bool Masker::mask(State state, std::span<uint32_t> bits) {
  KDELTA_CHECK(bits.size() >= words_, bits.size(), " words, expected ", words_);
  work_begin_ = automaton_->work();
  const auto known = whole_of_.find(state);
  if (known == whole_of_.end()) {
    std::ranges::fill(bits, 0u);
    make(state, bits);
    const Whole& made = keep(bits.first(words_));
    whole_of_.emplace(state, &made);
    return !made.empty();
  }
  const Whole& whole = *known->second;
  std::ranges::fill(bits.subspan(whole.bits.size()), 0u);
  std::ranges::copy(whole.bits, bits.begin());
  for (const Word& word : whole.words) bits[word.at] = word.bits;
  return !whole.empty();
}

const Masker::Whole& Masker::keep(std::span<const uint32_t> bits) {
  ++masks_made_;
  mask_bytes_ += 32;
  Whole whole;
  uint64_t hash = 0;
  size_t full = 0;
  for (const uint32_t w : bits) {
    hash = (std::rotl(hash, 5) ^ w) * 0x9E3779B97F4A7C15u;
    full += w != 0;
  }
  if (full <= words_ / kFewWords) {
    for (uint32_t w = 0; w < words_; ++w)
      if (bits[w] != 0) whole.words.push_back({w, bits[w]});
  } else {
    whole.bits.assign(bits.begin(), bits.end());
  }
  for (auto [at, end] = wholes_.equal_range(hash); at != end; ++at)
    if (at->second == whole) return at->second;
  mask_bytes_ += 64 + std::ssize(whole.bits) * 4 + std::ssize(whole.words) * 8;
  return wholes_.emplace(hash, std::move(whole))->second;
}

}  // namespace kdelta::grammar
