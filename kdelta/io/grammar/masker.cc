#include "kdelta/io/grammar/masker.h"

#include <algorithm>
#include <bit>

#include "kdelta/core/check.h"

namespace kdelta::grammar {

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
  prose_.clear();
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

void Masker::set(std::span<uint32_t> bits, int32_t token) const {
  for (; token >= 0; token = trie_->twin(token)) {
    const auto t = static_cast<uint32_t>(token);
    bits[t / 32] |= uint32_t{1} << t % 32;
  }
}

// The one state behind every character of prose; kDead when there is no such state.
Masker::State Masker::behind_any_character(State state) {
  // Bytes that what is left of a character may be: a lead and what may follow it.
  struct Form {
    uint8_t low, high, second_low, second_high;
    int tail;
  };
  static constexpr Form kForms[] = {{0xC2, 0xDF, 0x80, 0xBF, 1}, {0xE0, 0xE0, 0xA0, 0xBF, 2},
                                    {0xE1, 0xEC, 0x80, 0xBF, 2}, {0xED, 0xED, 0x80, 0x9F, 2},
                                    {0xEE, 0xEF, 0x80, 0xBF, 2}, {0xF0, 0xF0, 0x90, 0xBF, 3},
                                    {0xF1, 0xF3, 0x80, 0xBF, 3}, {0xF4, 0xF4, 0x80, 0x8F, 3}};
  const auto common = [&](State from, int low, int high) {
    const State to = automaton_->next(from, static_cast<uint8_t>(low));
    for (int b = low + 1; b <= high && to != Automaton::kDead; ++b)
      if (b != '"' && b != '\\' && automaton_->next(from, static_cast<uint8_t>(b)) != to) return Automaton::kDead;
    return to;
  };
  const State to = common(state, 0x20, 0x7E);
  if (to == Automaton::kDead) return to;
  for (const Form& f : kForms) {
    State at = common(state, f.low, f.high);
    for (int i = 0; i < f.tail && at != Automaton::kDead; ++i)
      at = i == 0 ? common(at, f.second_low, f.second_high) : common(at, 0x80, 0xBF);
    if (at != to) return Automaton::kDead;
  }
  return to;
}

// Whether prose of kProse characters, whatever it says, may follow: each leads to one state that takes one less.
bool Masker::takes_prose(State state) {
  std::vector<State> chain;
  int count = 0;  // that the state behind the chain takes
  for (State at = state; std::ssize(chain) < TokenTrie::kProse;) {
    const auto known = prose_.find(at);
    if (known != prose_.end()) {
      count = known->second;
      break;
    }
    const State to = behind_any_character(at);
    if (to == Automaton::kDead || to == at) {
      prose_[at] = count = to == at ? TokenTrie::kProse : 0;
      break;
    }
    chain.push_back(at);
    at = to;
  }
  // A chain that was not followed to its end tells of its first state alone.
  const bool whole = std::ssize(chain) < TokenTrie::kProse;
  if (!whole) return prose_[state] = TokenTrie::kProse, true;
  for (size_t i = chain.size(); i-- > 0;) prose_[chain[i]] = count = std::min(count + 1, TokenTrie::kProse);
  return prose_[state] == TokenTrie::kProse;
}

// Sets all of it at once where it may follow.
bool Masker::set_prose(State state, std::span<uint32_t> bits) {
  if (!takes_prose(state)) return false;
  for (size_t w = 0; w < words_; ++w) bits[w] |= trie_->prose()[w];
  return true;
}

// Every token below a node of the trie, read on from the state behind that node's text.
void Masker::walk(State from, int32_t below, bool prose_is_set, std::span<uint32_t> bits, std::vector<int32_t>* exits) {
  const std::vector<TokenTrie::Node>& nodes = trie_->nodes();
  path_[nodes[static_cast<size_t>(below)].depth] = from;
  const int32_t end = nodes[static_cast<size_t>(below)].end;
  int64_t work = automaton_->work();
  for (int32_t i = below + 1; i < end;) {
    const TokenTrie::Node& n = nodes[static_cast<size_t>(i)];
    if (prose_is_set && n.prose) {
      i = n.end;
      continue;
    }
    const State s = automaton_->next(path_[n.depth - 1u], n.byte);
    if (automaton_->work() != work) {
      work = automaton_->work();
      check_work();
    }
    if (s == Automaton::kDead) {
      i = n.end;
      continue;
    }
    if (n.token >= 0) set(bits, n.token);
    path_[n.depth] = s;
    if (exits != nullptr && automaton_->escapes(s) && n.end > i + 1) exits->push_back(i);
    ++i;
  }
}

const Masker::Local& Masker::local(std::span<const int32_t> nodes) {
  const State state = automaton_->local(nodes);
  const auto known = locals_.find(state);
  if (known != locals_.end()) return known->second;
  Local made;
  made.bits.assign(words_, 0);
  for (const int32_t node : nodes)
    for (const Program::TokenEdge& e : program_->tokens(node))
      if (e.token >= 0 && e.token < trie_->tokens()) set(made.bits, e.token);
  walk(state, 0, set_prose(state, made.bits), made.bits, &made.exits);
  made.exits.shrink_to_fit();
  mask_bytes_ += std::ssize(made.bits) * 4 + std::ssize(made.exits) * 4;
  return locals_.emplace(state, std::move(made)).first->second;
}

void Masker::make(State state, std::span<uint32_t> bits) {
  const std::vector<Automaton::Position> positions = automaton_->positions(state);
  const bool prose = set_prose(state, bits);
  for (size_t i = 0; i < positions.size();) {
    const Automaton::Frame frame = positions[i].frame;
    nodes_.clear();
    for (; i < positions.size() && positions[i].frame == frame; ++i) nodes_.push_back(positions[i].node);
    const Local& part = local(nodes_);
    for (size_t w = 0; w < words_; ++w) bits[w] |= part.bits[w];
    if (part.exits.empty()) continue;
    const State behind = automaton_->behind(frame);
    for (const int32_t exit : part.exits)
      if (!prose || !trie_->nodes()[static_cast<size_t>(exit)].prose) walk(behind, exit, prose, bits, nullptr);
    check_work();
  }
}

bool Masker::mask(State state, std::span<uint32_t> bits) {
  KDELTA_CHECK(bits.size() >= words_, bits.size(), " words, expected ", words_);
  work_begin_ = automaton_->work();
  std::fill(bits.begin(), bits.end(), 0u);
  const auto known = wholes_.find(state);
  if (known == wholes_.end()) {
    make(state, bits);
    keep(state, bits.first(words_));
    return any(bits);
  }
  const Whole& whole = known->second;
  if (whole.bits.empty()) {
    for (const int32_t token : whole.tokens) bits[static_cast<uint32_t>(token) / 32] |= uint32_t{1} << token % 32;
    return !whole.tokens.empty();
  }
  std::copy(whole.bits.begin(), whole.bits.end(), bits.begin());
  return true;
}

bool Masker::any(std::span<const uint32_t> bits) {
  return std::any_of(bits.begin(), bits.end(), [](uint32_t w) { return w != 0; });
}

void Masker::keep(State state, std::span<const uint32_t> bits) {
  ++masks_made_;
  Whole whole;
  size_t count = 0;
  for (const uint32_t w : bits) count += static_cast<size_t>(std::popcount(w));
  if (count < words_ / 2) {
    for (size_t w = 0; w < words_; ++w)
      for (uint32_t left = bits[w]; left != 0; left &= left - 1)
        whole.tokens.push_back(static_cast<int32_t>(32 * w) + std::countr_zero(left));
  } else {
    whole.bits.assign(bits.begin(), bits.end());
  }
  mask_bytes_ += 64 + std::ssize(whole.bits) * 4 + std::ssize(whole.tokens) * 4;
  wholes_.emplace(state, std::move(whole));
}

}  // namespace kdelta::grammar
