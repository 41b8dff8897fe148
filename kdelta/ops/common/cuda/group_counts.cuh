// Per-expert row counts (ops/common/group_counts.h) in a kernel.
#pragma once

#include "kdelta/ops/common/cuda/device.cuh"

namespace kdelta::cuda {

struct GroupCounts {
  const int64_t* count;  // null: every row is in use
  int64_t stride, groups;
};
inline GroupCounts group_counts(const View<const int64_t>& v) {
  return v.null() ? GroupCounts{} : GroupCounts{v.data, v.stride[0], v.dim(0)};
}

// Rows in use of `rows`; with a negative count or a sum above `rows` none is, and the fault is raised. Every thread of
// the block calls it and gets the same.
template <int kThreads>
__device__ __forceinline__ int64_t rows_in_use(const GroupCounts& g, int64_t rows, uint32_t* faults) {
  if (g.count == nullptr) return rows;
  __shared__ unsigned long long total;
  if (threadIdx.x == 0) total = 0;
  __syncthreads();
  unsigned long long sum = 0;
  int wrong = 0;
  for (int64_t e = threadIdx.x; e < g.groups; e += kThreads) {
    const int64_t n = g.count[e * g.stride];
    wrong |= n < 0 || n > rows;
    sum += static_cast<unsigned long long>(n);
  }
  atomicAdd(&total, sum);
  wrong = __syncthreads_or(wrong);
  if (wrong == 0 && total <= static_cast<unsigned long long>(rows)) return static_cast<int64_t>(total);
  if (threadIdx.x == 0) raise(faults, Fault::count);
  return 0;
}

}  // namespace kdelta::cuda
