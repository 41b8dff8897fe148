#include "kdelta/io/grammar/text_set.h"

#include <algorithm>
#include <map>

#include "kdelta/core/check.h"
#include "kdelta/io/unicode.h"

namespace kdelta::grammar {
namespace {

constexpr size_t kMostNfaNodes = 20'000, kMostStates = 10'000;
using Nodes = std::vector<int32_t>;  // sorted

}  // namespace

// Thompson's: node 0 is the start, node 1 the end.
struct TextSet::Nfa {
  struct Edge {
    int32_t set, to;  // set: kEmpty for a move that reads nothing
  };
  static constexpr int32_t kEmpty = -1;

  Nfa(std::string error_name, std::vector<CharSet> char_sets)
      : name(std::move(error_name)), sets(std::move(char_sets)) {
    (void)node();
    (void)node();
  }

  int32_t node() {
    if (edges.size() >= kMostNfaNodes)
      fail(ErrorCode::invalid_argument, name, ": too large to hold together with other keywords: more than ",
           kMostNfaNodes, " positions, counting every repetition");
    edges.emplace_back();
    return static_cast<int32_t>(edges.size() - 1);
  }
  void move(int32_t from, int32_t set, int32_t to) { edges[static_cast<size_t>(from)].push_back({set, to}); }

  // An expression whose tokens stand for the sets.
  void lower(const Grammar& g, ExprId id, int32_t from, int32_t to) {
    const Expr& e = g.expr(id);
    switch (e.kind) {
      case Expr::Kind::token:
        return move(from, e.id, to);
      case Expr::Kind::sequence:
        for (size_t i = 0; i < e.parts.size(); ++i) {
          const int32_t next = node();
          lower(g, e.parts[i], from, next);
          from = next;
        }
        return move(from, kEmpty, to);
      case Expr::Kind::choice:
        for (const ExprId part : e.parts) lower(g, part, from, to);
        return;
      case Expr::Kind::repeat:
        return lower_repeat(g, e, from, to);
      case Expr::Kind::bytes:
      case Expr::Kind::literal:
      case Expr::Kind::strings:
      case Expr::Kind::call:
        break;
    }
    KDELTA_UNREACHABLE("expression of a pattern", e.kind);
  }

  void lower_repeat(const Grammar& g, const Expr& e, int32_t from, int32_t to) {
    const auto again = [&] {
      const int32_t next = node();
      lower(g, e.parts[0], from, next);
      from = next;
    };
    const int32_t begin = node();
    move(from, kEmpty, begin);
    from = begin;
    for (int64_t i = 0; i < e.least; ++i) again();
    if (e.most == kNoEnd) {
      const int32_t loop = node();
      move(from, kEmpty, loop);
      lower(g, e.parts[0], loop, loop);
      return move(loop, kEmpty, to);
    }
    for (int64_t i = e.least; i < e.most; ++i) {
      move(from, kEmpty, to);
      again();
    }
    move(from, kEmpty, to);
  }

  Nodes closure(Nodes open) const {
    std::vector<bool> seen(edges.size(), false);
    Nodes out;
    while (!open.empty()) {
      const auto n = static_cast<size_t>(open.back());
      open.pop_back();
      if (seen[n]) continue;
      seen[n] = true;
      out.push_back(static_cast<int32_t>(n));
      for (const Edge& e : edges[n])
        if (e.set == kEmpty) open.push_back(e.to);
    }
    std::ranges::sort(out);
    return out;
  }
  Nodes start() const { return closure({0}); }
  static bool accepts(const Nodes& at) { return std::ranges::binary_search(at, 1); }
  Nodes next(const Nodes& at, uint32_t code) const {
    Nodes to;
    for (const int32_t n : at)
      for (const Edge& e : edges[static_cast<size_t>(n)])
        if (e.set != kEmpty && sets[static_cast<size_t>(e.set)].contains(code)) to.push_back(e.to);
    return to.empty() ? to : closure(std::move(to));
  }

  std::string name;
  std::vector<CharSet> sets;
  std::vector<std::vector<Edge>> edges;
};

void TextSet::match(const std::string& name, std::string_view pattern, Anchors anchors, bool negated) {
  Grammar g(name);
  std::vector<CharSet> sets;
  const auto write = [&](const CharSet& set) {
    const auto known = std::ranges::find(sets, set);
    const auto at = known - sets.begin();
    if (known == sets.end()) sets.push_back(set);
    return g.token(static_cast<int32_t>(at));
  };
  const ExprId e = read_regex(g, name, pattern, anchors, write, negated ? Reading::most : Reading::least);
  auto nfa = std::make_shared<Nfa>(name, std::move(sets));
  nfa->lower(g, e, 0, 1);
  conditions_.push_back({std::move(nfa), negated});
}

void TextSet::length(int64_t least, int64_t most) {
  if (least == 0 && most == kNoEnd) return;
  Grammar g("length");
  auto nfa = std::make_shared<Nfa>("length", std::vector<CharSet>{CharSet::all()});
  if (most == kNoEnd || most >= least) nfa->lower(g, g.repeat(g.token(0), least, most), 0, 1);
  conditions_.push_back({std::move(nfa), false});
}

void TextSet::among(const std::vector<std::string>& texts, bool negated) {
  std::map<uint32_t, int32_t> set_of;
  std::vector<CharSet> sets;
  auto nfa = std::make_shared<Nfa>("list of texts", std::vector<CharSet>{});
  for (const std::string& text : texts) {
    int32_t at = 0;
    for (size_t i = 0; i < text.size();) {
      const Char c = decode_char(text, i);
      i += static_cast<size_t>(c.bytes);
      const auto [known, added] = set_of.try_emplace(c.code, static_cast<int32_t>(sets.size()));
      if (added) sets.push_back(CharSet({{c.code, c.code}}));
      const int32_t to = nfa->node();
      nfa->move(at, known->second, to);
      at = to;
    }
    nfa->move(at, Nfa::kEmpty, 1);
  }
  nfa->sets = std::move(sets);
  conditions_.push_back({std::move(nfa), negated});
}

void TextSet::add(const TextSet& other) {
  conditions_.insert(conditions_.end(), other.conditions_.begin(), other.conditions_.end());
}

bool TextSet::contains(std::string_view text) const {
  return std::ranges::all_of(conditions_, [&](const Condition& c) {
    Nodes at = c.nfa->start();
    for (size_t i = 0; i < text.size() && !at.empty();) {
      const Char character = decode_char(text, i);
      i += static_cast<size_t>(character.bytes);
      at = c.nfa->next(at, character.code);
    }
    return Nfa::accepts(at) != c.negated;
  });
}

// The automata of all conditions side by side, made deterministic.
class TextSetWriter {
 public:
  TextSetWriter(const TextSet& set, std::string name) : set_(set), name_(std::move(name)) {}

  ExprId write(Grammar& out, const WriteChars& write) {
    find_classes();
    find_states();
    find_useful();
    std::vector<RuleId> rules(states_.size(), -1);
    for (size_t s = 0; s < states_.size(); ++s)
      if (useful_[s]) rules[s] = out.rule("text");
    for (size_t s = 0; s < states_.size(); ++s) {
      if (!useful_[s]) continue;
      std::vector<ExprId> all;
      if (states_[s].accepts) all.push_back(out.empty());
      std::map<int32_t, CharSet> by_target;
      for (const auto& [of_class, to] : states_[s].moves)
        if (useful_[static_cast<size_t>(to)]) by_target[to] = by_target[to] | classes_[of_class].set;
      for (const auto& [to, chars] : by_target)
        all.push_back(out.sequence({write(chars), out.call(rules[static_cast<size_t>(to)])}));
      out.define(rules[s], out.choice(std::move(all)));
    }
    return useful_[0] ? out.call(rules[0]) : out.choice({});
  }

 private:
  using Position = std::vector<Nodes>;  // by condition
  struct State {
    bool accepts = false;
    std::vector<std::pair<size_t, int32_t>> moves;  // class, state
  };
  // Characters that no set tells apart.
  struct Class {
    CharSet set;
    uint32_t one;
  };

  void find_classes() {
    std::vector<const CharSet*> sets;
    std::vector<uint32_t> begins{0, 0xE000};
    for (const TextSet::Condition& c : set_.conditions_)
      for (const CharSet& s : c.nfa->sets) {
        sets.push_back(&s);
        for (const CharRange r : s.ranges()) {
          begins.push_back(r.low);
          begins.push_back(r.high + 1);
        }
      }
    std::ranges::sort(begins);
    begins.erase(std::unique(begins.begin(), begins.end()), begins.end());
    std::map<std::vector<bool>, std::vector<CharRange>> by_sets;
    for (size_t i = 0; i < begins.size() && begins[i] <= kLastChar; ++i) {
      if (begins[i] >= 0xD800 && begins[i] < 0xE000) continue;
      std::vector<bool> in;
      for (const CharSet* s : sets) in.push_back(s->contains(begins[i]));
      by_sets[in].push_back({begins[i], i + 1 < begins.size() ? begins[i + 1] - 1 : kLastChar});
    }
    for (auto& [in, ranges] : by_sets) {
      const uint32_t one = ranges[0].low;
      classes_.push_back({CharSet(std::move(ranges)), one});
    }
  }

  int32_t state_of(Position p) {
    const auto [known, added] = known_.try_emplace(std::move(p), static_cast<int32_t>(states_.size()));
    if (!added) return known->second;
    if (states_.size() >= kMostStates)
      fail(ErrorCode::invalid_argument, name_, ": too large to hold together: more than ", kMostStates, " states");
    State s{.accepts = true};
    for (size_t c = 0; c < set_.conditions_.size(); ++c)
      s.accepts = s.accepts && TextSet::Nfa::accepts(known->first[c]) != set_.conditions_[c].negated;
    states_.push_back(s);
    positions_.push_back(&known->first);
    return known->second;
  }

  void find_states() {
    Position start;
    for (const TextSet::Condition& c : set_.conditions_) start.push_back(c.nfa->start());
    (void)state_of(std::move(start));
    for (size_t s = 0; s < states_.size(); ++s)
      for (size_t k = 0; k < classes_.size(); ++k) {
        Position to;
        bool alive = true;
        for (size_t c = 0; c < set_.conditions_.size() && alive; ++c) {
          to.push_back(set_.conditions_[c].nfa->next((*positions_[s])[c], classes_[k].one));
          alive = !to.back().empty() || set_.conditions_[c].negated;
        }
        if (!alive) continue;
        const int32_t next = state_of(std::move(to));
        states_[s].moves.emplace_back(k, next);
      }
  }

  // From which an accepting state can be reached.
  void find_useful() {
    std::vector<Nodes> into(states_.size());
    Nodes open;
    for (size_t s = 0; s < states_.size(); ++s) {
      for (const auto& [k, to] : states_[s].moves) into[static_cast<size_t>(to)].push_back(static_cast<int32_t>(s));
      if (states_[s].accepts) open.push_back(static_cast<int32_t>(s));
    }
    useful_.assign(states_.size(), false);
    while (!open.empty()) {
      const auto s = static_cast<size_t>(open.back());
      open.pop_back();
      if (useful_[s]) continue;
      useful_[s] = true;
      open.insert(open.end(), into[s].begin(), into[s].end());
    }
  }

  const TextSet& set_;
  std::string name_;
  std::vector<Class> classes_;
  std::map<Position, int32_t> known_;
  std::vector<const Position*> positions_;  // by state
  std::vector<State> states_;
  std::vector<bool> useful_;
};

ExprId TextSet::write(Grammar& out, const std::string& name, const WriteChars& write) const {
  return TextSetWriter(*this, name).write(out, write);
}

}  // namespace kdelta::grammar
