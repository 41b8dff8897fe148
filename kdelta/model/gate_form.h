// Which form of the decay gate a model runs: by order, or by a table of measurements.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "kdelta/core/isa.h"

namespace kdelta {

enum class GateChoice : uint8_t { factored, composed, automatic };
// "factored", "composed", "auto"; throws Error(invalid_argument) for anything else.
GateChoice parse_gate_choice(std::string_view name);

// Both forms measured on one machine in one run: T tokens, D inputs, P outputs, rank R.
struct GateRow {
  const char* result;  // of bench/results, without the ending
  IsaLevel isa;
  int threads;
  int64_t T, D, P, R;
  double factored_us, composed_us, spread_percent;
};
std::span<const GateRow> gate_table();

struct GateQuery {
  IsaLevel isa = IsaLevel::portable;
  int64_t T = 1, D = 0, P = 0, R = 0;
};
struct GateDecision {
  bool composed = false;
  std::string why;  // names the row, or says that none fits
};
// By the nearest row of the same instruction set and rank whose D and P are within a factor of 2 and T of 4. Composed
// only when that row has it faster by more than its spread: it takes more memory.
GateDecision decide_gate(std::span<const GateRow> rows, const GateQuery& query);

}  // namespace kdelta
