// Regular expressions in the part of their syntax that JavaScript, Python and Rust share: literals, '.', classes,
// groups, '|', *, +, ?, {n}, {n,} and {n,m} (lazy forms match the same texts). What a class means is chosen so that the
// text it allows is allowed in all three: \d is 0-9, \w A-Z a-z 0-9 _, \s ASCII white space, and \D, \W, \S and '.'
// leave out what one of them would refuse. Look-around, back-references, \b, \p, flags and atomic groups are refused by
// name.
#pragma once

#include <functional>
#include <string_view>

#include "kdelta/io/grammar/grammar.h"

namespace kdelta::grammar {

// How a character of the text that the pattern speaks of is written: Grammar::chars, or an escape in a JSON string.
using WriteChars = std::function<ExprId(const CharSet&)>;

enum class Anchors : uint8_t {
  whole,  // the pattern is the whole text; ^ and $ at its ends say so once more
  search  // the text contains the pattern, except where ^ and $ at the ends of an alternative bind it
};

enum class Reading : uint8_t {
  least,  // what every engine matches
  most  // what any engine matches: \d, \w and \s are Unicode's, '.' is any character, $ may stand in front of a last \n
};

// Throws Error(invalid_argument) naming the column, what was found and what is accepted; `name` begins the message.
ExprId read_regex(Grammar& out, const std::string& name, std::string_view pattern, Anchors anchors,
                  const WriteChars& write, Reading reading = Reading::least);

}  // namespace kdelta::grammar
