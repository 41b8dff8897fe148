// The permutation that sorts (token, choice) pairs by expert: a stable counting sort over the chosen experts.
#pragma once

#include "kdelta/ops/router/router.h"

namespace kdelta {

// Rows [0, live) of args.expert hold their choices; fills position, source and expert_begin, and the rows past live.
// cursor: E ints of scratch.
void sort_by_expert(const RouterArgs& args, int64_t live, int32_t* cursor);

// Rows that choose: live[0] held to 0..T, or T.
int64_t live_rows(const RouterArgs& args);

}  // namespace kdelta
