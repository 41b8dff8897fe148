// The states of a grammar while a text is read, byte by byte. A state is a set of positions, each a node of a rule and
// the frame that it returns to; a frame is the set of places behind the calls that led here at one position of the
// text. Equal sets are one state, and the moves between states are found when they are first asked for: a text that
// goes through known states costs a table look-up per byte. Since frames are shared sets (a graph, not a list of
// stacks), an ambiguous grammar costs a polynomial, not an exponential.
#pragma once

#include <array>
#include <memory>

#include "kdelta/io/grammar/program.h"

namespace kdelta::grammar {

// Sets of numbers that are stored once each and known by their place.
class SetTable {
 public:
  // `set` is sorted and without repetitions.
  int32_t intern(std::span<const uint64_t> set);
  std::span<const uint64_t> operator[](int32_t id) const {
    const auto i = static_cast<size_t>(id);
    return std::span(items_).subspan(begin_[i], begin_[i + 1] - begin_[i]);
  }
  int32_t size() const { return static_cast<int32_t>(begin_.size() - 1); }
  int64_t bytes() const;

 private:
  void grow();
  std::vector<uint64_t> items_;
  std::vector<size_t> begin_{0};
  std::vector<uint64_t> hash_;   // by set
  std::vector<int32_t> places_;  // open addressing, -1: free
};

class Automaton {
 public:
  using State = int32_t;
  using Frame = int32_t;
  static constexpr State kDead = 0;  // nothing matches any more

  // A position in the text: where in which rule.
  struct Position {
    Frame frame;
    int32_t node;
  };

  explicit Automaton(std::shared_ptr<const Program> program);

  const Program& program() const { return *program_; }
  State start() const { return start_; }
  State next(State state, uint8_t byte) {
    const Row& row = rows_[static_cast<size_t>(state)];
    const State to = row ? (*row)[byte] : kUnknown;
    return to != kUnknown ? to : find_next(state, byte);
  }
  // Behind a special token.
  State next_token(State state, int32_t token);
  // The text so far is whole.
  bool accepts(State state) const { return (flags_[static_cast<size_t>(state)] & kAccepts) != 0; }
  // It could not become longer: whole, or dead.
  bool ended(State state) const;

  // For masks. The positions of a state that read something, frame by frame.
  std::vector<Position> positions(State state) const;
  // The state of these nodes when nobody knows what comes behind their rule: what reaches the end of it escapes.
  State local(std::span<const int32_t> nodes);
  bool escapes(State state) const { return (flags_[static_cast<size_t>(state)] & kEscapes) != 0; }
  // The state behind the end of a frame's rule.
  State behind(Frame frame);

  int32_t states() const { return states_.size(); }
  int64_t bytes() const;
  // Positions looked at since it was made: what a caller that has waited long enough goes by.
  int64_t work() const { return work_; }

 private:
  static constexpr State kUnknown = -1;
  static constexpr uint8_t kAccepts = 1, kEscapes = 2;
  using Row = std::unique_ptr<std::array<State, 256>>;

  State find_next(State state, uint8_t byte);
  void begin();
  void add(Frame frame, int32_t node);
  void call(const Program::Call& call, Frame frame);
  void leave(Frame frame);
  void enter_rules();
  State finish();
  bool first_visit(uint64_t position);

  std::shared_ptr<const Program> program_;
  SetTable states_, frames_;
  std::vector<Row> rows_;       // by state
  std::vector<uint8_t> flags_;  // by state
  std::vector<State> behind_;   // by frame
  int64_t row_bytes_ = 0, work_ = 0;
  State start_ = kDead;
  Frame nowhere_ = 0;  // of local states

  // Of the state that is being made.
  std::vector<uint64_t> items_, open_, entering_;
  std::vector<std::vector<uint64_t>> pending_;  // by rule: places behind its calls
  std::vector<int32_t> ranks_;                  // a heap: rules with pending calls
  std::vector<uint64_t> visited_;               // a table of positions
  std::vector<int32_t> visit_;                  // whose entries are of this number
  int32_t visit_number_ = 0;
  size_t visits_ = 0;
};

}  // namespace kdelta::grammar
