// A grammar compiled for matching: every rule is a small automaton over bytes, special tokens and calls of rules.
// Empty moves are gone, and what cannot lead to the end of its rule is too, so every position that is reached can still
// become a whole text.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kdelta/io/grammar/grammar.h"

namespace kdelta::grammar {

inline constexpr int64_t kMostNodes = int64_t{1} << 21;  // of all rules; and edges: four times as many

class Program {
 public:
  struct ByteEdge {
    uint8_t low, high;
    int32_t to;
  };
  struct TokenEdge {
    int32_t token, to;
  };
  struct Call {
    int32_t rule, to;  // of a rule that matches the empty text `to` is also reached without the call
  };
  struct Rule {
    int32_t start = 0;
    // A rule whose text may begin with a call of another one has the lower rank. There is such an order because left
    // recursion is refused.
    int32_t rank = 0;
    bool nullable = false;
  };

  // A rule that begins with a call of itself is made a loop. Throws Error(invalid_argument) naming the rule for other
  // left recursion, a rule that is called and not defined, a root that no text matches; and for too many nodes.
  explicit Program(const Grammar& grammar);

  int32_t root() const { return 0; }
  int32_t rules() const { return static_cast<int32_t>(rules_.size()); }
  const Rule& rule(int32_t id) const { return rules_[static_cast<size_t>(id)]; }
  int32_t nodes() const { return static_cast<int32_t>(nodes_.size() - 1); }
  // Of the rule of each rank.
  int32_t rule_of_rank(int32_t rank) const { return by_rank_[static_cast<size_t>(rank)]; }
  const std::string& name() const { return name_; }

  std::span<const ByteEdge> bytes(int32_t node) const { return part(bytes_, at(node).bytes, at(node + 1).bytes); }
  std::span<const TokenEdge> tokens(int32_t node) const { return part(tokens_, at(node).tokens, at(node + 1).tokens); }
  std::span<const Call> calls(int32_t node) const { return part(calls_, at(node).calls, at(node + 1).calls); }
  // The rule may end here.
  bool final(int32_t node) const { return at(node).final; }
  // Something may be read here before anything is called.
  bool reads(int32_t node) const { return !bytes(node).empty() || !tokens(node).empty(); }
  // The rule ends here and cannot go on.
  bool last(int32_t node) const { return final(node) && !reads(node) && calls(node).empty(); }

 private:
  struct Node {
    int32_t bytes = 0, tokens = 0, calls = 0;  // first of its edges; those of the next node are behind the last
    bool final = false;
  };
  friend class Compiler;

  const Node& at(int32_t node) const { return nodes_[static_cast<size_t>(node)]; }
  template <class T>
  static std::span<const T> part(const std::vector<T>& all, int32_t begin, int32_t end) {
    return std::span(all).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
  }

  std::string name_;
  std::vector<Node> nodes_;
  std::vector<ByteEdge> bytes_;
  std::vector<TokenEdge> tokens_;
  std::vector<Call> calls_;
  std::vector<Rule> rules_;
  std::vector<int32_t> by_rank_;
};

}  // namespace kdelta::grammar
