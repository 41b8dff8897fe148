// Numbers of JSON within bounds, as expressions over their decimal digits.
#pragma once

#include <optional>

#include "kdelta/io/grammar/grammar.h"

namespace kdelta::grammar {

// Whole numbers have at most 19 digits, fractions 20: what a number may be that a schema does not bound.
inline constexpr int64_t kMostDigits = 19, kMostFraction = 20;

struct NumberBounds {
  std::optional<int64_t> low, high;  // included
  // Of numbers with a fraction: the bound itself is out.
  bool above_low = false, below_high = false;
};

// Whole numbers without leading zeros, "-0" for 0 too where it is in bounds.
ExprId integers(Grammar& g, const NumberBounds& bounds);
// Those of them that `divisor`, at least 1, divides.
ExprId multiples(Grammar& g, const NumberBounds& bounds, int64_t divisor);
// Numbers with or without a fraction, without an exponent.
ExprId decimals(Grammar& g, const NumberBounds& bounds);

}  // namespace kdelta::grammar
