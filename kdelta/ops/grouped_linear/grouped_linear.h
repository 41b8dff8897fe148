// One projection per expert over the token rows routed to it:
//   out[p, n] = sum_k x[row[p], k] * w[e][n, k]   for p in [expert_begin[e], expert_begin[e+1])
// Letters: P routed (token, choice) pairs sorted by expert, E experts, K inputs, N outputs. Numerics and exactness as
// in linear.h: the bits of a pair's output do not depend on which other pairs share its expert (on CUDA with
// Options::exact). Experts that take MXFP8 inputs (Matrix::input) get every row of x quantised by their rule, once.
//
// With up_w, an expert's gate and up projections and the activation between them in one pass:
//   out[p, n] = activation(gate, up),  gate and up as above from w and up_w, each rounded to out's type
// which is what two calls and an activation give, to the bit. Only some rows take it (grouped_linear_gates()).
#pragma once

#include <span>

#include "kdelta/core/exec.h"
#include "kdelta/core/matrix.h"
#include "kdelta/ops/common/activation_kind.h"

namespace kdelta {

struct GroupedLinearArgs {
  AnyConstView x;                     // [R, K] f32 or bf16, row stride free
  View<const int32_t> row;            // [P] row of x per pair, or null: row p (then R = P)
  View<const int32_t> expert_begin;   // [E+1] ascending, [0] = 0, [E] <= P; pairs past [E] get zeros
  std::span<const Matrix> w;          // E matrices [N, K] of one dtype, taking the same inputs; host array
  AnyView out;                        // [P, N] f32 or bf16, row stride free; may not overlap x
  std::span<const Matrix> up_w = {};  // empty, or E matrices like w
  ActivationKind activation = ActivationKind::swiglu;  // with up_w, as its parameters; see ops/activation/activation.h
  float beta = 1, linear_beta = 0;
  // CUDA: the call in front of this one on its stream was one with up_w, and expert_begin and row are older: they may
  // be read, and weights fetched, while that one ends.
  bool routing_settled = false;
};

Cost grouped_linear_cost(
    const GroupedLinearArgs& args);  // counts P * N * K products and, at most, min(P, E) experts' weights

// Whether the row that serves these arguments without up_w serves them with it. No other row would be worth the change.
bool grouped_linear_gates(const Exec& ex, const GroupedLinearArgs& args);

// Throws Error(invalid_argument) on wrong shapes, dtypes, mixed expert shapes, E = 0, or (CPU) boundaries or rows out
// of range. On a CUDA device a pair whose row is out of range gets zeros, every pair does under wrong boundaries, and a
// Fault is raised.
void grouped_linear(const Exec& ex, const GroupedLinearArgs& args);

}  // namespace kdelta
