// Sets of texts that are told by several conditions at once: patterns, lengths, lists, each of them or its opposite. As
// finite automata over characters, so that the texts for which all hold can be written as a grammar.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kdelta/io/grammar/regex.h"

namespace kdelta::grammar {

class TextSet {
 public:
  TextSet() = default;  // all texts

  // Those that the pattern matches; or those that it matches in no engine, which is not all others: engines differ in
  // what \d, \w, \s, '.' and $ are. Throws as read_regex() does.
  void match(const std::string& name, std::string_view pattern, Anchors anchors, bool negated = false);
  // Of so many characters; `most` may be kNoEnd.
  void length(int64_t least, int64_t most);
  void among(const std::vector<std::string>& texts, bool negated = false);
  void add(const TextSet& other);

  bool all() const { return conditions_.empty(); }
  // How many conditions it has.
  size_t size() const { return conditions_.size(); }
  bool contains(std::string_view text) const;
  // Its texts, each character as `write` has it; a choice of nothing when there are none. Throws
  // Error(invalid_argument), its message begun by `name`, when the automaton of all conditions has too many states.
  ExprId write(Grammar& out, const std::string& name, const WriteChars& write) const;

 private:
  struct Nfa;
  struct Condition {
    std::shared_ptr<const Nfa> nfa;
    bool negated;
  };
  friend class TextSetWriter;
  std::vector<Condition> conditions_;
};

}  // namespace kdelta::grammar
