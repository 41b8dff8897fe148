#include "kdelta/io/grammar/program.h"

#include <algorithm>
#include <queue>

#include "kdelta/core/check.h"

namespace kdelta::grammar {

// Expressions become nodes and moves (Thompson's construction); then nullable and productive rules are found, empty
// moves closed over, and rules ordered. Invariant of lower(): it adds no move into `from` and none out of `to`, unless
// both are the same node of a loop.
class Compiler {
 public:
  Compiler(const Grammar& grammar, Program& out) : grammar_(grammar), out_(out) {}

  void run() {
    out_.name_ = grammar_.name();
    const auto rules = static_cast<size_t>(grammar_.rules());
    KDELTA_CHECK(rules > 0, "a grammar without rules");
    for (size_t r = 0; r < rules; ++r) lower_rule(static_cast<RuleId>(r));
    sort_moves();
    nullable_ = reaching_end([&](const Move& m) { return m.kind == Move::Kind::empty; });
    productive_ = reaching_end([](const Move& m) { return m.kind != Move::Kind::call; });
    if (!productive_[0]) refuse(0, "matches no text");
    find_useful();
    number_nodes();
    close_nodes();
    order_rules();
  }

 private:
  struct Move {
    enum class Kind : uint8_t { empty, bytes, token, call };
    int32_t from = 0, to = 0;
    Kind kind = Kind::empty;
    uint8_t low = 0, high = 0;
    int32_t id = 0;
  };
  struct Ends {
    int32_t start, end;
  };

  [[noreturn]] void refuse(RuleId rule, const std::string& why) const {
    const std::string& name = grammar_.rule_name(rule);
    fail(ErrorCode::invalid_argument, grammar_.name(), ": ", name.empty() ? "it" : str("rule '", name, "'"), " ", why);
  }

  int32_t node() {
    if (nodes_ >= kMostNodes) too_large();
    return nodes_++;
  }
  [[noreturn]] void too_large() const {
    fail(ErrorCode::invalid_argument, grammar_.name(), ": too large: more than ", kMostNodes,
         " positions, counting every repetition");
  }
  void move(Move m) {
    if (std::ssize(moves_) >= 4 * kMostNodes) too_large();
    moves_.push_back(m);
  }
  void empty(int32_t from, int32_t to) { move({.from = from, .to = to}); }
  void byte(int32_t from, uint8_t low, uint8_t high, int32_t to) {
    move({.from = from, .to = to, .kind = Move::Kind::bytes, .low = low, .high = high});
  }

  // A rule "a ::= a x | y" is "y x*".
  void lower_rule(RuleId rule) {
    const ExprId body = grammar_.body(rule);
    if (body < 0) refuse(rule, "is used, but nothing defines it");
    const Ends ends{node(), node()};
    rules_.push_back(ends);
    const Expr& e = grammar_.expr(body);
    const std::vector<ExprId> alternatives = e.kind == Expr::Kind::choice ? e.parts : std::vector<ExprId>{body};
    const bool recursive =
        std::any_of(alternatives.begin(), alternatives.end(), [&](ExprId a) { return begins_with(a, rule); });
    const int32_t loop = recursive ? node() : ends.end;
    for (const ExprId a : alternatives) {
      if (!begins_with(a, rule)) {
        lower(a, ends.start, loop);
      } else if (const Expr& s = grammar_.expr(a); s.kind == Expr::Kind::sequence) {
        lower_sequence(std::span(s.parts).subspan(1), loop, loop);
      }
    }
    if (recursive) empty(loop, ends.end);
  }

  bool begins_with(ExprId id, RuleId rule) const {
    const Expr& e = grammar_.expr(id);
    if (e.kind == Expr::Kind::sequence) return !e.parts.empty() && begins_with(e.parts[0], rule);
    return e.kind == Expr::Kind::call && e.id == rule;
  }

  void lower(ExprId id, int32_t from, int32_t to) {
    const Expr& e = grammar_.expr(id);
    switch (e.kind) {
      case Expr::Kind::bytes:
        return byte(from, e.low, e.high, to);
      case Expr::Kind::literal:
        return lower_literal(e.text, from, to);
      case Expr::Kind::strings:
        return lower_strings(e.texts, from, to);
      case Expr::Kind::token:
        return move({.from = from, .to = to, .kind = Move::Kind::token, .id = e.id});
      case Expr::Kind::call:
        return move({.from = from, .to = to, .kind = Move::Kind::call, .id = e.id});
      case Expr::Kind::sequence:
        return lower_sequence(e.parts, from, to);
      case Expr::Kind::choice:
        for (const ExprId part : e.parts) lower(part, from, to);
        return;
      case Expr::Kind::repeat:
        return lower_repeat(e, from, to);
    }
    KDELTA_UNREACHABLE("expression", e.kind);
  }

  void lower_sequence(std::span<const ExprId> parts, int32_t from, int32_t to) {
    if (parts.empty()) return empty(from, to);
    for (size_t i = 0; i < parts.size(); ++i) {
      const int32_t next = i + 1 == parts.size() ? to : node();
      lower(parts[i], from, next);
      from = next;
    }
  }

  void lower_literal(std::string_view text, int32_t from, int32_t to) {
    if (text.empty()) return empty(from, to);
    for (size_t i = 0; i < text.size(); ++i) {
      const int32_t next = i + 1 == text.size() ? to : node();
      byte(from, static_cast<uint8_t>(text[i]), static_cast<uint8_t>(text[i]), next);
      from = next;
    }
  }

  // A tree of the texts' beginnings.
  void lower_strings(std::vector<std::string> texts, int32_t from, int32_t to) {
    std::sort(texts.begin(), texts.end());
    texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
    std::vector<int32_t> path{from};  // nodes along the text before
    for (size_t t = 0; t < texts.size(); ++t) {
      const std::string& text = texts[t];
      const std::string_view before = t == 0 ? std::string_view() : texts[t - 1];
      const auto shared = std::mismatch(text.begin(), text.end(), before.begin(), before.end()).first - text.begin();
      path.resize(static_cast<size_t>(shared) + 1);
      const bool goes_on = t + 1 < texts.size() && texts[t + 1].starts_with(text);
      if (text.empty()) empty(from, to);
      for (size_t i = static_cast<size_t>(shared); i < text.size(); ++i) {
        const bool ends = i + 1 == text.size();
        const int32_t next = ends && !goes_on ? to : node();
        byte(path.back(), static_cast<uint8_t>(text[i]), static_cast<uint8_t>(text[i]), next);
        if (ends && goes_on) empty(next, to);
        path.push_back(next);
      }
    }
  }

  // Every optional repetition can leave for the end at once, so that the moves stay as many as the repetitions.
  void lower_repeat(const Expr& e, int32_t from, int32_t to) {
    int32_t at = node();
    empty(from, at);
    for (int64_t i = 0; i < e.least; ++i) {
      const int32_t next = node();
      lower(e.parts[0], at, next);
      at = next;
    }
    if (e.most == kNoEnd) {
      const int32_t loop = node();
      empty(at, loop);
      lower(e.parts[0], loop, loop);
      return empty(loop, to);
    }
    empty(at, to);
    for (int64_t i = e.least; i < e.most; ++i) {
      const int32_t next = node();
      lower(e.parts[0], at, next);
      empty(next, to);
      at = next;
    }
  }

  void sort_moves() {
    std::stable_sort(moves_.begin(), moves_.end(), [](const Move& a, const Move& b) { return a.from < b.from; });
    first_.assign(static_cast<size_t>(nodes_) + 1, 0);
    for (const Move& m : moves_) ++first_[static_cast<size_t>(m.from) + 1];
    for (size_t n = 0; n < static_cast<size_t>(nodes_); ++n) first_[n + 1] += first_[n];
  }
  std::span<const Move> moves_from(int32_t n) const {
    const auto begin = static_cast<size_t>(first_[static_cast<size_t>(n)]);
    return std::span(moves_).subspan(begin, static_cast<size_t>(first_[static_cast<size_t>(n) + 1]) - begin);
  }

  // By rule: its end can be reached by moves that pass `direct` and by calls of rules of which the same is true. Found
  // by waiting: a call of a rule that is not known yet is looked at again when it is.
  template <class Direct>
  std::vector<bool> reaching_end(const Direct& direct) const {
    std::vector<bool> found(rules_.size(), false), seen(static_cast<size_t>(nodes_), false);
    struct Waiting {
      int32_t owner, to;
    };
    std::vector<std::vector<Waiting>> waiting(rules_.size());
    std::vector<Waiting> open;  // (rule, node of it that is reached)
    for (size_t r = 0; r < rules_.size(); ++r) open.push_back({static_cast<int32_t>(r), rules_[r].start});
    while (!open.empty()) {
      const Waiting here = open.back();
      open.pop_back();
      if (seen[static_cast<size_t>(here.to)]) continue;
      seen[static_cast<size_t>(here.to)] = true;
      const auto owner = static_cast<size_t>(here.owner);
      if (here.to == rules_[owner].end) {
        found[owner] = true;
        for (const Waiting w : waiting[owner]) open.push_back(w);
        continue;
      }
      for (const Move& m : moves_from(here.to)) {
        const bool call = m.kind == Move::Kind::call;
        if (call && !found[static_cast<size_t>(m.id)])
          waiting[static_cast<size_t>(m.id)].push_back({here.owner, m.to});
        else if (call || direct(m))
          open.push_back({here.owner, m.to});
      }
    }
    return found;
  }

  bool passes(const Move& m) const { return m.kind != Move::Kind::call || productive_[static_cast<size_t>(m.id)]; }

  // Nodes from which the end of their rule can be reached.
  void find_useful() {
    std::vector<std::vector<int32_t>> into(static_cast<size_t>(nodes_));
    for (const Move& m : moves_)
      if (passes(m)) into[static_cast<size_t>(m.to)].push_back(m.from);
    useful_.assign(static_cast<size_t>(nodes_), false);
    std::vector<int32_t> open;
    for (const Ends& r : rules_) open.push_back(r.end);
    while (!open.empty()) {
      const auto n = static_cast<size_t>(open.back());
      open.pop_back();
      if (useful_[n]) continue;
      useful_[n] = true;
      for (const int32_t from : into[n]) open.push_back(from);
    }
  }

  bool skips(const Move& m) const {
    return m.kind == Move::Kind::empty || (m.kind == Move::Kind::call && nullable_[static_cast<size_t>(m.id)]);
  }

  // Only starts and what something is read or called in front of are places to stand; the others lie in between.
  void number_nodes() {
    number_.assign(static_cast<size_t>(nodes_), -1);
    const auto place = [&](int32_t n) {
      if (number_[static_cast<size_t>(n)] >= 0) return;
      number_[static_cast<size_t>(n)] = static_cast<int32_t>(places_.size());
      places_.push_back(n);
    };
    for (const Ends& r : rules_) place(r.start);
    for (const Move& m : moves_)
      if (m.kind != Move::Kind::empty && passes(m) && useful_[static_cast<size_t>(m.to)]) place(m.to);
  }

  void close_nodes() {
    std::vector<int32_t> mark(static_cast<size_t>(nodes_), -1), open;
    std::vector<bool> is_end(static_cast<size_t>(nodes_), false);
    for (const Ends& r : rules_) is_end[static_cast<size_t>(r.end)] = true;
    int64_t steps = 0;
    for (size_t p = 0; p < places_.size(); ++p) {
      Program::Node n{static_cast<int32_t>(out_.bytes_.size()), static_cast<int32_t>(out_.tokens_.size()),
                      static_cast<int32_t>(out_.calls_.size())};
      open.assign(1, places_[p]);
      while (!open.empty()) {
        const int32_t at = open.back();
        open.pop_back();
        if (mark[static_cast<size_t>(at)] == static_cast<int32_t>(p)) continue;
        mark[static_cast<size_t>(at)] = static_cast<int32_t>(p);
        n.final = n.final || is_end[static_cast<size_t>(at)];
        for (const Move& m : moves_from(at)) {
          if (++steps > 16 * kMostNodes) too_large();
          if (!useful_[static_cast<size_t>(m.to)] || !passes(m)) continue;
          if (skips(m)) open.push_back(m.to);
          add_edge(m);
        }
      }
      out_.nodes_.push_back(n);
    }
    out_.nodes_.push_back({static_cast<int32_t>(out_.bytes_.size()), static_cast<int32_t>(out_.tokens_.size()),
                           static_cast<int32_t>(out_.calls_.size())});
  }

  void add_edge(const Move& m) {
    if (m.kind == Move::Kind::empty) return;
    const int32_t to = number_[static_cast<size_t>(m.to)];
    if (m.kind == Move::Kind::bytes) out_.bytes_.push_back({m.low, m.high, to});
    if (m.kind == Move::Kind::token) out_.tokens_.push_back({m.id, to});
    if (m.kind == Move::Kind::call) out_.calls_.push_back({m.id, to});
  }

  // Callers before those whom their texts may begin with. What is left over when no rule is without an unranked caller
  // runs in circles.
  void order_rules() {
    std::vector<int32_t> callers(rules_.size(), 0);
    const auto callees = [&](size_t r) {
      std::vector<int32_t> all;
      for (const Program::Call& c : out_.calls(number_[static_cast<size_t>(rules_[r].start)])) all.push_back(c.rule);
      std::sort(all.begin(), all.end());
      all.erase(std::unique(all.begin(), all.end()), all.end());
      return all;
    };
    for (size_t r = 0; r < rules_.size(); ++r)
      for (const int32_t c : callees(r)) ++callers[static_cast<size_t>(c)];
    std::queue<size_t> ready;
    for (size_t r = 0; r < rules_.size(); ++r)
      if (callers[r] == 0) ready.push(r);
    out_.rules_.resize(rules_.size());
    for (size_t r = 0; r < rules_.size(); ++r)
      out_.rules_[r] = {number_[static_cast<size_t>(rules_[r].start)], -1, nullable_[r]};
    while (!ready.empty()) {
      const size_t r = ready.front();
      ready.pop();
      out_.rules_[r].rank = static_cast<int32_t>(out_.by_rank_.size());
      out_.by_rank_.push_back(static_cast<int32_t>(r));
      for (const int32_t c : callees(r))
        if (--callers[static_cast<size_t>(c)] == 0) ready.push(static_cast<size_t>(c));
    }
    for (size_t r = 0; r < rules_.size(); ++r)
      if (out_.rules_[r].rank < 0 && is_in_circle(r, callees))
        refuse(static_cast<RuleId>(r), "is left-recursive: its text may begin with a call of itself");
  }

  // Of the rules left over, those that reach themselves; others are only called by such.
  template <class Callees>
  bool is_in_circle(size_t rule, const Callees& callees) const {
    std::vector<bool> seen(rules_.size(), false);
    std::vector<size_t> open{rule};
    while (!open.empty()) {
      const size_t r = open.back();
      open.pop_back();
      for (const int32_t c : callees(r)) {
        if (static_cast<size_t>(c) == rule) return true;
        if (seen[static_cast<size_t>(c)]) continue;
        seen[static_cast<size_t>(c)] = true;
        open.push_back(static_cast<size_t>(c));
      }
    }
    return false;
  }

  const Grammar& grammar_;
  Program& out_;
  int32_t nodes_ = 0;
  std::vector<Move> moves_;
  std::vector<Ends> rules_;
  std::vector<int32_t> first_;  // move of each node
  std::vector<bool> nullable_, productive_, useful_;
  std::vector<int32_t> number_, places_;  // node to node of the program, and back
};

Program::Program(const Grammar& grammar) {
  Compiler(grammar, *this).run();
}

}  // namespace kdelta::grammar
