#include "kdelta/model/gate_form.h"

#include <cmath>

#include "kdelta/core/error.h"

namespace kdelta {
namespace {

constexpr GateRow kRows[] = {
#define KDELTA_GATE(result, isa, threads, T, D, P, R, factored, composed, spread) \
  {result, IsaLevel::isa, threads, T, D, P, R, factored, composed, spread},
#include "kdelta/model/gate_table.inc"
#undef KDELTA_GATE
};

double octaves(int64_t a, int64_t b) {
  return std::fabs(std::log2(static_cast<double>(a) / static_cast<double>(b)));
}

// Negative: too far to say anything.
double distance(const GateRow& row, const GateQuery& q) {
  if (row.isa != q.isa || row.R != q.R) return -1;
  const double d = octaves(row.D, q.D), p = octaves(row.P, q.P), t = octaves(row.T, q.T);
  return d > 1 || p > 1 || t > 2 ? -1 : d + p + t;
}

}  // namespace

GateChoice parse_gate_choice(std::string_view name) {
  if (name == "factored") return GateChoice::factored;
  if (name == "composed") return GateChoice::composed;
  if (name == "auto") return GateChoice::automatic;
  fail(ErrorCode::invalid_argument, "kda_gate: '", name, "', accepted: factored, composed, auto");
}

std::span<const GateRow> gate_table() {
  return kRows;
}

GateDecision decide_gate(std::span<const GateRow> rows, const GateQuery& query) {
  const GateRow* best = nullptr;
  for (const GateRow& row : rows) {
    const double d = distance(row, query);
    if (d >= 0 && (best == nullptr || d < distance(*best, query))) best = &row;
  }
  const std::string asked =
      str("T=", query.T, " D=", query.D, " P=", query.P, " R=", query.R, " ", to_string(query.isa));
  if (best == nullptr) return {false, str("no measurement near ", asked)};
  const bool composed = best->composed_us < best->factored_us * (1 - best->spread_percent / 100);
  return {composed, str("measured at T=", best->T, " D=", best->D, " P=", best->P, " R=", best->R, ": factored ",
                        best->factored_us, " us, composed ", best->composed_us, " us, spread ", best->spread_percent,
                        " % (", best->result, ")")};
}

}  // namespace kdelta
