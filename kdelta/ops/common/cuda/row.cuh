// A row of D elements held in the registers of a group of threads, eight elements a chunk: thread `lane` of the group
// owns chunks lane, lane + kGroup, ... The owner of an element depends on D alone, never on alignment or on the number
// of rows, and so do the bits of a sum over the row.
#pragma once

#include "kdelta/ops/common/cuda/device.cuh"
#include "kdelta/ops/common/cuda/limits.h"

namespace kdelta::cuda {

inline constexpr int kChunk = 8;

// Up to eight elements at p, zeros behind the n-th. Aligned rows are whole chunks.
template <bool kAligned, class T>
__device__ __forceinline__ void load_chunk(const T* p, int64_t n, float (&x)[kChunk]) {
  if constexpr (kAligned) {
    load<true>(p, x);
  } else {
#pragma unroll
    for (int i = 0; i < kChunk; ++i) x[i] = i < n ? to_f32(p[i]) : 0.0f;
  }
}
template <bool kAligned, class T>
__device__ __forceinline__ void store_chunk(T* p, int64_t n, const float (&x)[kChunk]) {
  if constexpr (kAligned) {
    store<true>(p, x);
  } else {
#pragma unroll
    for (int i = 0; i < kChunk; ++i)
      if (i < n) p[i] = from_f32<T>(x[i]);
  }
}

// Up to eight elements as they lie in memory: half the registers of fp32 for bf16, and stored again bit for bit.
template <bool kAligned, class T>
struct RawChunk {
  static constexpr int kWords = kChunk * static_cast<int>(sizeof(T)) / 16;
  uint4 word[kWords];

  __device__ __forceinline__ void load(const T* p, int64_t n) {
    if constexpr (kAligned) {
#pragma unroll
      for (int i = 0; i < kWords; ++i) word[i] = reinterpret_cast<const uint4*>(p)[i];
    } else {
      T* element = reinterpret_cast<T*>(word);
#pragma unroll
      for (int i = 0; i < kChunk; ++i) element[i] = i < n ? p[i] : T{};
    }
  }
  __device__ __forceinline__ void store(T* p, int64_t n) const {
    if constexpr (kAligned) {
#pragma unroll
      for (int i = 0; i < kWords; ++i) reinterpret_cast<uint4*>(p)[i] = word[i];
    } else {
      const T* element = reinterpret_cast<const T*>(word);
#pragma unroll
      for (int i = 0; i < kChunk; ++i)
        if (i < n) p[i] = element[i];
    }
  }
  __device__ __forceinline__ void unpack(float (&x)[kChunk]) const {
    if constexpr (sizeof(T) == 4) {
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        x[4 * i] = __uint_as_float(word[i].x), x[4 * i + 1] = __uint_as_float(word[i].y);
        x[4 * i + 2] = __uint_as_float(word[i].z), x[4 * i + 3] = __uint_as_float(word[i].w);
      }
    } else {
      const uint4 v = word[0];
      x[0] = low_bf16(v.x), x[1] = high_bf16(v.x), x[2] = low_bf16(v.y), x[3] = high_bf16(v.y);
      x[4] = low_bf16(v.z), x[5] = high_bf16(v.z), x[6] = low_bf16(v.w), x[7] = high_bf16(v.w);
    }
  }
};

// The threads of one row: a part of a warp, a warp, or the whole block.
template <int kGroup>
struct RowGroup {
  static constexpr int kThreads = kGroup > 256 ? kGroup : 256;
  static constexpr int kRows = kThreads / kGroup;                      // rows of a block
  static constexpr int kSharedFloats = kGroup > 32 ? kGroup / 32 : 1;  // for each number of sums()

  __device__ static int lane() { return static_cast<int>(threadIdx.x) % kGroup; }
  __device__ static int64_t row() { return int64_t{blockIdx.x} * kRows + static_cast<int>(threadIdx.x) / kGroup; }

  // Every thread of the group gets the same bits. All threads of the block call it.
  template <int N>
  __device__ static void sums(float (&x)[N], float* shared) {
    if constexpr (kGroup > 32) {
      block_sums<kGroup>(x, shared);
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i) x[i] = warp_sum<kGroup>(x[i]);
    }
  }
};

// f(group size, chunks a thread) as integral constants, the smallest that hold a row of D; D is at most kMaxRowWidth.
template <class F>
void dispatch_row(int64_t D, F&& f) {
  using std::integral_constant;
  if (D <= 16 * kChunk)
    f(integral_constant<int, 16>{}, integral_constant<int, 1>{});
  else if (D <= 32 * kChunk * 4)
    f(integral_constant<int, 32>{}, integral_constant<int, 4>{});
  else if (D <= 256 * kChunk * 2)
    f(integral_constant<int, 256>{}, integral_constant<int, 2>{});
  else if (D <= 256 * kChunk * 4)
    f(integral_constant<int, 256>{}, integral_constant<int, 4>{});
  else
    f(integral_constant<int, 512>{}, integral_constant<int, 4>{});
}

}  // namespace kdelta::cuda
