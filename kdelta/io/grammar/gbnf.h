// GBNF, the grammar syntax of llama.cpp: rules "name ::= alternatives" over texts in quotes, [classes] of characters,
// '.', rule names and (groups), each repeated by *, +, ?, {n}, {n,} or {n,m}; alternatives are parted by '|', and '#'
// begins a comment. A rule ends at the end of its line, except inside a group and behind '|'. The rule "root" is the
// whole text.
#pragma once

#include <string_view>

#include "kdelta/io/grammar/grammar.h"

namespace kdelta::grammar {

// Escapes in texts and classes: \n \r \t \\ \" \[ \] \- \^ and \xHH, \uHHHH, \UHHHHHHHH, which name a character. Throws
// Error(invalid_argument) naming line and column: bad syntax, a rule that is used and not defined, defined twice, no
// root; text above 1 MiB.
Grammar parse_gbnf(std::string_view text);
// The same as part of a larger grammar: returns the rule "root".
RuleId read_gbnf(Grammar& out, std::string_view text);

}  // namespace kdelta::grammar
