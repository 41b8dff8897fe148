// A few tokens of a row in one block's shared memory, one word each (pack()): sorted, cut and drawn from without asking
// the rest of the team. Every thread of the block makes every call.
#pragma once

#include "kdelta/ops/sample/cuda_team.cuh"

namespace kdelta::sample_cuda {

inline constexpr int kListed = 2048;  // a power of two

// Largest word first. Words behind the n-th may be overwritten by zeros, up to the next power of two.
__device__ inline void sort_list(uint64_t* list, int n) {
  int size = 2;
  while (size < n) size *= 2;
  for (int i = n + static_cast<int>(threadIdx.x); i < size; i += kThreads) list[i] = 0;
  __syncthreads();
  for (int run = 2; run <= size; run *= 2)
    for (int step = run / 2; step > 0; step /= 2) {
      for (int i = static_cast<int>(threadIdx.x); i < size / 2; i += kThreads) {
        const int a = 2 * i - (i & (step - 1)), b = a + step;
        const uint64_t x = list[a], y = list[b];
        if ((x < y) == ((a & run) == 0)) list[a] = y, list[b] = x;
      }
      __syncthreads();
    }
}

// How many words from the first on weigh at least `want` together, but at most n; no sum has an order.
// wanted(weight of all).
template <int kBlocks, class Weight, class Wanted>
__device__ int prefix_of(Team<kBlocks>& team, const uint64_t* list, int n, Weight&& weight, Wanted&& wanted) {
  constexpr int kEach = kListed / kThreads;
  const int first = static_cast<int>(threadIdx.x) * kEach;
  uint64_t mine[kEach], sum = 0, total = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) sum += mine[i] = first + i < n ? weight(list[first + i]) : 0;
  uint64_t before = team.scan(sum, &total);
  const uint64_t want = wanted(total);
  uint64_t kept = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (first + i < n && before < want) ++kept;
    before += mine[i];
  }
  return static_cast<int>(team.in_block(kept, [](uint64_t a, uint64_t b) { return a + b; }));
}

}  // namespace kdelta::sample_cuda
