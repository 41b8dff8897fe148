// The permutation that sorts (token, choice) pairs by expert: a stable counting sort over the chosen experts.
#pragma once

#include "kdelta/ops/router/variants.h"

namespace kdelta {

// Rows [0, live) of args.expert hold their choices; fills position, source and expert_begin, and the rows past live.
// cursor: E ints of scratch.
void sort_by_expert(const RouterArgs& args, int64_t live, int32_t* cursor);

// Scratch of one thread of the vector kernels: a whole number of cache lines, at least E ints.
int64_t router_thread_bytes(const RouterDesc& d);

// Experts that get places.
int64_t held_experts(const RouterArgs& args);

// Rows that choose: live[0] held to 0..T, or T.
int64_t live_rows(const RouterArgs& args);

}  // namespace kdelta
