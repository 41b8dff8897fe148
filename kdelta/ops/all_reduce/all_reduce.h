// Sum over the ranks that hold parts of one model:  out[t, d] = sum_r partial_r[t, d]  (+ addend[t, d])
// in fp32, in rank order r = 0..n-1, then the addend, rounded once to out's dtype. Letters: T tokens, D width, n ranks.
// Source: tensor parallelism of Shoeybi et al. 2019 (Megatron-LM): a projection whose inputs are dealt to ranks gives
// partial sums. These come unrounded, so a model of n ranks rounds where a model of one does.
// Deterministic: bits depend on the partial sums and the addend alone, and every rank gets the same.
#pragma once

#include "kdelta/core/communicator.h"
#include "kdelta/core/exec.h"

namespace kdelta {

struct AllReduceArgs {
  AnyConstView partial;  // [T, D] f32, row stride free: of this rank
  AnyConstView addend;   // null, or [T, D] f32 or bf16, row stride free: the same on every rank; may be out itself
  AnyView out;           // [T, D] f32 or bf16, row stride free, its dtype that of all ranks; may not overlap partial
};

Cost all_reduce_cost(const AllReduceArgs& args, int ranks);

// All ranks of ex.comm call it with the same shapes. T = 0 is legal and still meets. NaN and infinity stay in their
// element. Throws Error(invalid_argument) naming the argument on a wrong shape, dtype, stride or null pointer and
// without a communicator, Error(failed) as Communicator::meet does.
void all_reduce(const Exec& ex, const AllReduceArgs& args);

}  // namespace kdelta
