#include "kdelta/io/grammar/automaton.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "kdelta/core/check.h"

namespace kdelta::grammar {
namespace {

// Positions of one state at most: more of them is an ambiguity without bound, and time without bound for each byte.
constexpr size_t kMostPositions = size_t{1} << 16;

uint64_t mixed(uint64_t x) {
  x ^= x >> 32;
  x *= 0x9E3779B97F4A7C15u;
  return x ^ x >> 29;
}

constexpr uint64_t pack(int32_t frame, int32_t node) {
  return static_cast<uint64_t>(static_cast<uint32_t>(frame)) << 32 | static_cast<uint32_t>(node);
}
constexpr int32_t frame_of(uint64_t item) {
  return static_cast<int32_t>(item >> 32);
}
constexpr int32_t node_of(uint64_t item) {
  return static_cast<int32_t>(static_cast<uint32_t>(item));
}

// Beside positions a set may hold what lies behind the last frame.
constexpr uint64_t kAccept = pack(-1, 1), kEscape = pack(-1, 2);
constexpr bool is_position(uint64_t item) {
  return frame_of(item) >= 0;
}

void sort_unique(std::vector<uint64_t>& items) {
  std::sort(items.begin(), items.end());
  items.erase(std::unique(items.begin(), items.end()), items.end());
}

}  // namespace

int32_t SetTable::intern(std::span<const uint64_t> set) {
  if (places_.size() < 2 * begin_.size()) grow();
  uint64_t hash = set.size();
  for (const uint64_t x : set) hash = mixed(hash * 31 + x);
  const size_t mask = places_.size() - 1;
  size_t at = hash & mask;
  for (; places_[at] >= 0; at = (at + 1) & mask) {
    const int32_t id = places_[at];
    if (hash_[static_cast<size_t>(id)] == hash && std::ranges::equal((*this)[id], set)) return id;
  }
  places_[at] = size();
  hash_.push_back(hash);
  items_.insert(items_.end(), set.begin(), set.end());
  begin_.push_back(items_.size());
  return size() - 1;
}

void SetTable::grow() {
  places_.assign(std::max<size_t>(64, 4 * begin_.size()), -1);
  size_t power = 64;
  while (power < places_.size()) power *= 2;
  places_.assign(power, -1);
  for (size_t id = 0; id < hash_.size(); ++id) {
    size_t at = hash_[id] & (power - 1);
    while (places_[at] >= 0) at = (at + 1) & (power - 1);
    places_[at] = static_cast<int32_t>(id);
  }
}

int64_t SetTable::bytes() const {
  return static_cast<int64_t>(8 * (items_.capacity() + begin_.capacity() + hash_.capacity()) + 4 * places_.capacity());
}

Automaton::Automaton(std::shared_ptr<const Program> program) : program_(std::move(program)) {
  pending_.resize(static_cast<size_t>(program_->rules()));
  visited_.resize(64);
  visit_.resize(64, 0);
  nowhere_ = frames_.intern(std::span(&kEscape, 1));
  begin();
  KDELTA_CHECK(finish() == kDead);
  begin();
  const Program::Rule& root = program_->rule(program_->root());
  if (root.nullable) items_.push_back(kAccept);
  pending_[static_cast<size_t>(program_->root())].push_back(kAccept);
  ranks_.push_back(root.rank);
  start_ = finish();
}

bool Automaton::first_visit(uint64_t position) {
  if (2 * ++visits_ > visited_.size()) {
    if (visits_ > kMostPositions)
      fail(ErrorCode::failed, program_->name(), ": too ambiguous: more than ", kMostPositions,
           " ways to read the text so far");
    std::vector<uint64_t> old;
    for (size_t i = 0; i < visited_.size(); ++i)
      if (visit_[i] == visit_number_) old.push_back(visited_[i]);
    visited_.resize(2 * visited_.size());
    visit_.assign(visited_.size(), 0);
    visit_number_ = 1;
    visits_ = 0;
    for (const uint64_t x : old) (void)first_visit(x);
    ++visits_;
  }
  const size_t mask = visited_.size() - 1;
  size_t at = mixed(position) & mask;
  for (; visit_[at] == visit_number_; at = (at + 1) & mask)
    if (visited_[at] == position) return --visits_, false;
  visit_[at] = visit_number_;
  visited_[at] = position;
  return true;
}

void Automaton::begin() {
  items_.clear();
  open_.clear();
  // What an earlier state left behind when it was given up in the middle.
  for (const int32_t rank : ranks_) pending_[static_cast<size_t>(program_->rule_of_rank(rank))].clear();
  ranks_.clear();
  visits_ = 0;
  if (++visit_number_ == std::numeric_limits<int32_t>::max()) {
    visit_.assign(visit_.size(), 0);
    visit_number_ = 1;
  }
}

// Reached by reading or by returning.
void Automaton::add(Frame frame, int32_t node) {
  open_.push_back(pack(frame, node));
  while (!open_.empty()) {
    const uint64_t item = open_.back();
    open_.pop_back();
    if (!first_visit(item)) continue;
    ++work_;
    const Frame f = frame_of(item);
    const int32_t n = node_of(item);
    if (program_->reads(n)) items_.push_back(item);
    for (const Program::Call& c : program_->calls(n)) call(c, f);
    if (program_->final(n)) leave(f);
  }
}

void Automaton::leave(Frame frame) {
  for (const uint64_t place : frames_[frame]) {
    if (is_position(place))
      open_.push_back(place);
    else
      items_.push_back(place);
  }
}

// Where nothing can come behind the call but the end of the caller, the callee returns to the caller's own frame: a
// list written as a recursion does not pile up frames.
void Automaton::call(const Program::Call& call, Frame frame) {
  std::vector<uint64_t>& places = pending_[static_cast<size_t>(call.rule)];
  if (places.empty()) {
    ranks_.push_back(program_->rule(call.rule).rank);
    std::push_heap(ranks_.begin(), ranks_.end(), std::greater<>());
  }
  if (!program_->last(call.to)) return places.push_back(pack(frame, call.to));
  const std::span<const uint64_t> behind = frames_[frame];
  places.insert(places.end(), behind.begin(), behind.end());
  work_ += std::ssize(behind);
}

// All calls of a rule at this position are known before it is entered, since those who call come first by rank: it gets
// one frame. A rule that has just been entered does not end here: that it may be empty, its callers have seen to.
void Automaton::enter_rules() {
  while (!ranks_.empty()) {
    std::pop_heap(ranks_.begin(), ranks_.end(), std::greater<>());
    const int32_t rule = program_->rule_of_rank(ranks_.back());
    ranks_.pop_back();
    entering_.clear();
    entering_.swap(pending_[static_cast<size_t>(rule)]);
    sort_unique(entering_);
    const Frame frame = frames_.intern(entering_);
    const int32_t start = program_->rule(rule).start;
    const uint64_t item = pack(frame, start);
    if (!first_visit(item)) continue;
    ++work_;
    if (program_->reads(start)) items_.push_back(item);
    for (const Program::Call& c : program_->calls(start)) call(c, frame);
  }
}

Automaton::State Automaton::finish() {
  enter_rules();
  sort_unique(items_);
  uint8_t flags = 0;
  for (const uint64_t item : items_) flags |= item == kAccept ? kAccepts : item == kEscape ? kEscapes : 0;
  const auto known = static_cast<size_t>(states_.size());
  if (rows_.capacity() == known) rows_.reserve(2 * known + 1);
  if (flags_.capacity() == known) flags_.reserve(2 * known + 1);
  const State state = states_.intern(items_);
  if (static_cast<size_t>(state) < known) return state;
  rows_.emplace_back();
  flags_.push_back(flags);
  return state;
}

Automaton::State Automaton::find_next(State state, uint8_t byte) {
  Row& row = rows_[static_cast<size_t>(state)];
  if (!row) {
    row = std::make_unique<std::array<State, 256>>();
    row->fill(kUnknown);
    row_bytes_ += sizeof(*row);
  }
  begin();
  // Bytes that no edge of the state tells from this one lead to the same state: found at once for all of them.
  uint8_t low = 0, high = 255;
  // Interning moves the sets; nothing is interned before all positions of this one have been read.
  for (const uint64_t item : states_[state]) {
    if (!is_position(item)) continue;
    ++work_;
    for (const Program::ByteEdge& e : program_->bytes(node_of(item))) {
      if (e.high < byte) {
        low = std::max<uint8_t>(low, static_cast<uint8_t>(e.high + 1));
      } else if (byte < e.low) {
        high = std::min<uint8_t>(high, static_cast<uint8_t>(e.low - 1));
      } else {
        low = std::max(low, e.low);
        high = std::min(high, e.high);
        add(frame_of(item), e.to);
      }
    }
  }
  const State to = finish();
  std::array<State, 256>& found = *rows_[static_cast<size_t>(state)];  // finish() may have moved the rows
  std::fill(found.begin() + low, found.begin() + high + 1, to);
  return to;
}

Automaton::State Automaton::next_token(State state, int32_t token) {
  begin();
  for (const uint64_t item : states_[state]) {
    if (!is_position(item)) continue;
    for (const Program::TokenEdge& e : program_->tokens(node_of(item)))
      if (e.token == token) add(frame_of(item), e.to);
  }
  return finish();
}

bool Automaton::ended(State state) const {
  const std::span<const uint64_t> items = states_[state];
  return std::none_of(items.begin(), items.end(), is_position);
}

std::vector<Automaton::Position> Automaton::positions(State state) const {
  std::vector<Position> out;
  for (const uint64_t item : states_[state])
    if (is_position(item)) out.push_back({frame_of(item), node_of(item)});
  return out;
}

Automaton::State Automaton::local(std::span<const int32_t> nodes) {
  begin();
  for (const int32_t node : nodes) items_.push_back(pack(nowhere_, node));
  return finish();
}

Automaton::State Automaton::behind(Frame frame) {
  behind_.resize(static_cast<size_t>(frames_.size()), kUnknown);
  const auto f = static_cast<size_t>(frame);
  if (behind_[f] != kUnknown) return behind_[f];
  begin();
  const std::span<const uint64_t> places = frames_[frame];
  for (const uint64_t place : std::vector<uint64_t>(places.begin(), places.end())) {
    if (is_position(place))
      add(frame_of(place), node_of(place));
    else
      items_.push_back(place);
  }
  const State to = finish();
  return behind_[f] = to;
}

int64_t Automaton::bytes() const {
  return states_.bytes() + frames_.bytes() + row_bytes_ +
         static_cast<int64_t>(rows_.capacity() * sizeof(Row) + flags_.capacity() + 4 * behind_.capacity());
}

}  // namespace kdelta::grammar
