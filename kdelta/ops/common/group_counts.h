// Per-expert row counts: rows are sorted by expert, so expert e owns the count[e] rows behind those of the experts
// before it, and the sum of the counts is the number of rows in use. Rows behind that are neither read nor written.
#pragma once

#include "kdelta/core/error.h"
#include "kdelta/core/tensor.h"

namespace kdelta {

// The number of rows in use of `rows`: all of them without counts. Throws Error(invalid_argument) for a negative count
// and for a sum above `rows`.
inline int64_t rows_in_use(const View<const int64_t>& counts, int64_t rows, const char* argument) {
  if (counts.null()) return rows;
  int64_t sum = 0;
  for (int64_t e = 0; e < counts.dim(0); ++e) {
    const int64_t n = *counts.at(e);
    if (n < 0) fail(ErrorCode::invalid_argument, argument, ": count ", n, " of expert ", e, ", expected 0 or more");
    if (n > rows - sum)
      fail(ErrorCode::invalid_argument, argument, ": count ", n, " of expert ", e, " behind ", sum,
           " rows, expected a sum of at most ", rows);
    sum += n;
  }
  return sum;
}

}  // namespace kdelta
