// Several projections of the same inputs.
#pragma once

#include "kdelta/core/exec.h"
#include "kdelta/ops/linear/linear.h"

namespace kdelta {

// Whether one call can have both: one format, and the same inputs.
inline bool stored_alike(const Matrix& a, const Matrix& b) {
  return a.dtype == b.dtype && a.input == b.input;
}

// Projections of x in as few calls as there are runs of neighbours stored alike: in one for gate and up, or for a KDA
// layer's [q | k | v | g | f | b] of one format (layout A); in two for [q | k | v] and [g | f | b] of a mixed one
// (layout B). Every part is read where it lies and padded to whole panels of 16 rows by the op, so no part is ever
// packed or copied. Where the parts take MXFP8 inputs (W8A8), x is quantised once for all of them, by their rule; other
// formats leave x to the product as it is.
void project_runs(const Exec& ex, const AnyConstView& x, std::span<const LinearPart> parts);

}  // namespace kdelta
