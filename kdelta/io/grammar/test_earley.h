// A second opinion on grammars: Earley's algorithm over productions taken literally from the expressions, with nothing
// shared with program.h or automaton.h. Slow and obvious.
#pragma once

#include <algorithm>
#include <set>
#include <tuple>

#include "kdelta/io/grammar/grammar.h"

namespace kdelta::grammar {

class Earley {
 public:
  // Bytes are 0..255, the special token `id` is 256 + id.
  using Text = std::vector<int32_t>;

  explicit Earley(const Grammar& g) : grammar_(g) {
    for (RuleId r = 0; r < g.rules(); ++r) symbols_.push_back({});
    for (RuleId r = 0; r < g.rules(); ++r) {
      const Symbol body = of(g.body(r));
      symbols_[static_cast<size_t>(r)].push_back({body});
    }
    find_nullable();
    drop_unproductive();
  }

  enum class Verdict { no, begins, whole };  // whole: may also go on
  Verdict read(const Text& text) {
    sets_.assign(1, {});
    for (size_t p = 0; p < symbols_[0].size(); ++p) sets_[0].insert({0, p, 0, 0});
    close(0);
    for (size_t i = 0; i < text.size(); ++i) {
      sets_.push_back({});
      for (const auto& [nt, p, dot, from] : sets_[i]) {
        const Production& rhs = symbols_[nt][p];
        if (dot < rhs.size() && rhs[dot].terminal && rhs[dot].low <= text[i] && text[i] <= rhs[dot].high)
          sets_[i + 1].insert({nt, p, dot + 1, from});
      }
      if (sets_[i + 1].empty()) return Verdict::no;
      close(i + 1);
    }
    for (const auto& [nt, p, dot, from] : sets_.back())
      if (nt == 0 && from == 0 && dot == symbols_[0][p].size()) return Verdict::whole;
    return Verdict::begins;
  }

 private:
  struct Symbol {
    bool terminal = false;
    int32_t low = 0, high = 0;  // of a terminal; else low is the nonterminal
  };
  using Production = std::vector<Symbol>;
  using Item = std::tuple<size_t, size_t, size_t, size_t>;  // nonterminal, production, dot, origin

  Symbol fresh(std::vector<Production> productions) {
    symbols_.push_back(std::move(productions));
    return {false, static_cast<int32_t>(symbols_.size() - 1)};
  }

  Symbol text(const std::string& t) {
    Production p;
    for (const char c : t) p.push_back({true, static_cast<uint8_t>(c), static_cast<uint8_t>(c)});
    return fresh({p});
  }

  Symbol of(ExprId id) {
    const Expr& e = grammar_.expr(id);
    std::vector<Production> all;
    switch (e.kind) {
      case Expr::Kind::bytes:
        return {true, e.low, e.high};
      case Expr::Kind::token:
        return {true, 256 + e.id, 256 + e.id};
      case Expr::Kind::literal:
        return text(e.text);
      case Expr::Kind::call:
        return {false, e.id};
      case Expr::Kind::strings:
        for (const std::string& t : e.texts) all.push_back({text(t)});
        return fresh(all);
      case Expr::Kind::choice:
        for (const ExprId part : e.parts) all.push_back({of(part)});
        return fresh(all);
      case Expr::Kind::sequence: {
        Production p;
        for (const ExprId part : e.parts) p.push_back(of(part));
        return fresh({p});
      }
      case Expr::Kind::repeat: {
        const Symbol part = of(e.parts[0]);
        Production p(static_cast<size_t>(e.least), part);
        Symbol rest = fresh({{}});
        if (e.most == kNoEnd) {
          symbols_[static_cast<size_t>(rest.low)].push_back({part, rest});
        } else {
          for (int64_t i = e.least; i < e.most; ++i) rest = fresh({{}, {part, rest}});
        }
        p.push_back(rest);
        return fresh({p});
      }
    }
    return {};
  }

  template <class Good>
  std::vector<bool> fixpoint(const Good& good) const {
    std::vector<bool> found(symbols_.size(), false);
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t nt = 0; nt < symbols_.size(); ++nt)
        for (const Production& p : symbols_[nt])
          if (!found[nt] && std::all_of(p.begin(), p.end(), [&](const Symbol& s) {
                return s.terminal ? good(s) : static_cast<bool>(found[static_cast<size_t>(s.low)]);
              }))
            found[nt] = changed = true;
    }
    return found;
  }
  void find_nullable() {
    nullable_ = fixpoint([](const Symbol&) { return false; });
  }
  void drop_unproductive() {
    const std::vector<bool> productive = fixpoint([](const Symbol&) { return true; });
    for (std::vector<Production>& all : symbols_)
      std::erase_if(all, [&](const Production& p) {
        return std::any_of(p.begin(), p.end(),
                           [&](const Symbol& s) { return !s.terminal && !productive[static_cast<size_t>(s.low)]; });
      });
  }

  void close(size_t at) {
    std::vector<Item> open(sets_[at].begin(), sets_[at].end());
    const auto add = [&](const Item& item) {
      if (sets_[at].insert(item).second) open.push_back(item);
    };
    while (!open.empty()) {
      const auto [nt, p, dot, from] = open.back();
      open.pop_back();
      const Production& rhs = symbols_[nt][p];
      if (dot == rhs.size()) {
        const std::set<Item> callers = sets_[from];
        for (const auto& [cnt, cp, cdot, cfrom] : callers) {
          const Production& crhs = symbols_[cnt][cp];
          if (cdot < crhs.size() && !crhs[cdot].terminal && static_cast<size_t>(crhs[cdot].low) == nt)
            add({cnt, cp, cdot + 1, cfrom});
        }
      } else if (!rhs[dot].terminal) {
        const auto callee = static_cast<size_t>(rhs[dot].low);
        for (size_t q = 0; q < symbols_[callee].size(); ++q) add({callee, q, 0, at});
        if (nullable_[callee]) add({nt, p, dot + 1, from});
      }
    }
  }

  const Grammar& grammar_;
  std::vector<std::vector<Production>> symbols_;  // by nonterminal; rules first
  std::vector<bool> nullable_;
  std::vector<std::set<Item>> sets_;
};

}  // namespace kdelta::grammar
