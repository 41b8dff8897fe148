// The kernels of a prefill in the order of their launch; launch_chunk (cuda_chunk.cu) calls them. All but the first
// start as dependents of the one before.
#pragma once

#include "kdelta/ops/kda/cuda_args.cuh"
#include "kdelta/ops/kda/cuda_layout.h"

namespace kdelta::kda_cuda {

void launch_plan(const Exec& ex, const Args& a, const Workspace& w);
void launch_factors(const Exec& ex, const Args& a, const Workspace& w, int multiprocessors);
void launch_scan(const Exec& ex, const Args& a, const Workspace& w);
// exact: the state takes the pool's rounding after every chunk.
void launch_outputs(const Exec& ex, const Args& a, const Workspace& w, bool exact);
void launch_finish(const Exec& ex, const Args& a, const Workspace& w);

}  // namespace kdelta::kda_cuda
