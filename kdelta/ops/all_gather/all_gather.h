// Columns of all ranks side by side:  out[t, r * W + w] = part_r[t, w]  for every rank r. Copies, no arithmetic: the
// logits of a head whose vocabulary is dealt to ranks. Letters: T rows, W columns of one rank, n ranks.
#pragma once

#include "kdelta/core/communicator.h"
#include "kdelta/core/exec.h"

namespace kdelta {

struct AllGatherArgs {
  AnyConstView part;  // [T, W] f32 or bf16, row stride free: of this rank
  AnyView out;        // [T, n * W] in part's dtype, which is that of all ranks, row stride free; may not overlap part
};

Cost all_gather_cost(const AllGatherArgs& args);

// All ranks of ex.comm call it with the same shapes. T = 0 is legal and still meets. Throws Error(invalid_argument)
// naming the argument on a wrong shape, dtype, stride or null pointer and without a communicator, Error(failed) as
// Communicator::meet does.
void all_gather(const Exec& ex, const AllGatherArgs& args);

}  // namespace kdelta
