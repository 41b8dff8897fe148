// PagedSequences in a kernel. The host never reads their contents, so kernels ask here whether a row is sound; a row
// that is not is skipped whole: nothing stored, output zero, its fault raised, nobody else touched.
#pragma once

#include "kdelta/ops/common/cuda/device.cuh"
#include "kdelta/ops/common/cuda/views.cuh"
#include "kdelta/ops/mla/mla.h"

namespace kdelta::mla_cuda {

struct PagedArrays {
  const int32_t* cu;
  const int32_t* context;
  const int32_t* pages;
  int64_t pages_stride;
  int count, live, columns;  // sequences, those in use, pages of a row
  int page_count, page_tokens;
  int64_t tokens, max_len, max_context;

  __device__ __forceinline__ int begin(int n) const { return cu[n]; }
  __device__ __forceinline__ int length(int n) const { return cu[n + 1] - cu[n]; }
  // Row of position s in a cache seen as [page count * page tokens] rows.
  __device__ __forceinline__ int64_t row(int n, int64_t s) const {
    return static_cast<int64_t>(pages[n * pages_stride + s / page_tokens]) * page_tokens + s % page_tokens;
  }
};

inline PagedArrays paged_arrays(const PagedSequences& s, int64_t tokens, const Shape& cache) {
  return {.cu = s.cu.data,
          .context = s.context.data,
          .pages = s.pages.data,
          .pages_stride = s.pages.stride[0],
          .count = static_cast<int>(s.pages.dim(0)),
          .live = s.n_prefill + s.n_decode,
          .columns = static_cast<int>(s.pages.dim(1)),
          .page_count = static_cast<int>(cache[0]),
          .page_tokens = static_cast<int>(cache[1]),
          .tokens = tokens,
          .max_len = s.max_len,
          .max_context = s.max_context};
}

__device__ __forceinline__ bool boundaries_are_wrong(const PagedArrays& s, int n) {
  return s.cu[n] < 0 || s.cu[n + 1] < s.cu[n] || s.cu[n + 1] > s.tokens || (n == 0 && s.cu[0] != 0);
}

// The faults of row n; of its pages `first`, `first` + `step`, ...: a thread's share. What on the CPU validate_paged
// throws for.
__device__ __forceinline__ uint32_t row_faults(const PagedArrays& s, int n, int first, int step) {
  if (boundaries_are_wrong(s, n)) return static_cast<uint32_t>(Fault::boundaries);
  const int64_t len = s.length(n);
  if (len == 0) return 0;
  if (n >= s.live) return static_cast<uint32_t>(Fault::boundaries);
  const int64_t context = s.context[n], furthest = context + len;
  if (len > s.max_len || furthest > s.max_context) return static_cast<uint32_t>(Fault::length);
  const int64_t needed = (furthest + s.page_tokens - 1) / s.page_tokens;
  if (context < 0 || needed > s.columns) return static_cast<uint32_t>(Fault::page);
  bool wrong = false;
  for (int64_t p = first; p < needed; p += step) {
    const int32_t page = s.pages[n * s.pages_stride + p];
    wrong |= page < 1 || page >= s.page_count;
  }
  return wrong ? static_cast<uint32_t>(Fault::page) : 0;
}

__device__ __forceinline__ void raise_all(uint32_t* raised, uint32_t faults) {
  if (faults != 0 && raised != nullptr) atomicOr(raised, faults);
}

// Whether row n must be skipped; raises its faults. Every thread of the block calls it: a barrier.
__device__ __forceinline__ bool row_is_faulty(const PagedArrays& s, int n, uint32_t* raised) {
  const uint32_t faults = row_faults(s, n, static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x));
  raise_all(raised, faults);
  return __syncthreads_or(faults != 0) != 0;
}

// The sequence that token t belongs to, -1: none.
__device__ __forceinline__ int owner_of(const PagedArrays& s, int64_t t) {
  int low = 0, high = s.count;  // the last n with cu[n] <= t
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (s.cu[middle] <= t)
      low = middle;
    else
      high = middle;
  }
  return s.count > 0 && s.cu[low] <= t && t < s.cu[low + 1] ? low : -1;
}

// Tokens of nobody, or of a row that no kernel computes; `first`, `first` + `step`, ... of all. Every thread of the
// block calls it.
__device__ inline void zero_tokens(const PagedArrays& s, const cuda::HeadRows<bf16>& out, int H, int value, int first,
                                   int step) {
  for (int t = first; t < s.tokens; t += step) {
    const int n = owner_of(s, t);
    if (n >= 0 && n < s.live && row_faults(s, n, s.columns, 1) == 0) continue;
    for (int i = static_cast<int>(threadIdx.x); i < H * value; i += static_cast<int>(blockDim.x))
      out.at(t, i / value)[i % value] = bf16{};
  }
}

// Sum of x over lower threads; `total`: over all. Every thread of the block calls it.
template <int kThreads>
__device__ inline int block_scan(int x, int* total) {
  constexpr int kWarps = kThreads / 32;
  __shared__ int warp_total[kWarps];
  int sum = x;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, sum, offset);
    if (static_cast<int>(threadIdx.x % 32) >= offset) sum += other;
  }
  if (threadIdx.x % 32 == 31) warp_total[threadIdx.x / 32] = sum;
  __syncthreads();
  int before = 0, all = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    if (w == static_cast<int>(threadIdx.x / 32)) before = all;
    all += warp_total[w];
  }
  __syncthreads();
  *total = all;
  return before + sum - x;
}

}  // namespace kdelta::mla_cuda
