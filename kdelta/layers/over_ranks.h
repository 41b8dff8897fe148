// Projections whose inputs are dealt to the ranks of a model: every rank has the sums over its own, and the model goes
// on with the sum of all.
#pragma once

#include "kdelta/core/exec.h"
#include "kdelta/ops/all_reduce/all_reduce.h"
#include "kdelta/ops/linear/linear.h"

namespace kdelta {

// out = x w^T (+ addend), x and w of this rank, summed over the ranks. Partial sums stay fp32; what is rounded, once,
// is what one rank would round.
inline void linear_over_ranks(const Exec& ex, const AnyConstView& x, const Matrix& w, const AnyConstView& addend,
                              const AnyView& out) {
  if (ex.comm == nullptr) return linear(ex, {.x = x, .w = w, .addend = addend, .out = out});
  Arena::Scope scope(*ex.scratch);
  const AnyView partial = ex.scratch->take(DType::f32, out.shape);
  linear(ex, {.x = x, .w = w, .out = partial});
  all_reduce(ex, {.partial = partial, .addend = addend, .out = out});
}

}  // namespace kdelta
