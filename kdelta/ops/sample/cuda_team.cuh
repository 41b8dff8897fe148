// The thread blocks that share a row of logits: one, or a cluster of several, each with a slice of the vocabulary in
// its own memory. Sums have one order whatever the timing. Every thread of the team makes every call.
#pragma once

#include "kdelta/ops/common/cuda/device.cuh"

namespace kdelta::sample_cuda {

inline constexpr int kThreads = 512, kWarps = kThreads / 32;

template <int kBlocks>
class Team {
 public:
  struct Shared {
    uint64_t warp[2][kWarps];
    uint64_t slot[2];
  };
  __device__ explicit Team(Shared& s) : s_(s) {}

  __device__ static int rank() { return static_cast<int>(blockIdx.x) % kBlocks; }
  __device__ static int64_t row() { return blockIdx.x / kBlocks; }

  // Everything that the team wrote before is visible to it afterwards.
  __device__ static void sync() {
    if constexpr (kBlocks == 1) {
      __syncthreads();
    } else {
#if __CUDA_ARCH__ >= 900
      asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
    }
  }
  // A word of shared memory as block `rank` has it.
  __device__ static uint64_t peek(const uint64_t* word, int rank) {
    if constexpr (kBlocks == 1) {
      return *word;
    } else {
      uint64_t x = 0;
#if __CUDA_ARCH__ >= 900
      uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(word));
      asm("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(at) : "r"(rank));
      asm volatile("ld.shared::cluster.u64 %0, [%1];" : "=l"(x) : "r"(at) : "memory");
#endif
      return x;
    }
  }

  // Writes a word of shared memory as block `rank` has it.
  __device__ static void poke(uint64_t* word, int rank, uint64_t x) {
    if constexpr (kBlocks == 1) {
      *word = x;
    } else {
#if __CUDA_ARCH__ >= 900
      uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(word));
      asm("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(at) : "r"(rank));
      asm volatile("st.shared::cluster.u64 [%0], %1;" ::"r"(at), "l"(x) : "memory");
#endif
    }
  }

  // Of all threads of the block.
  template <class T, class Op>
  __device__ T in_block(T x, Op op) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) x = op(x, __shfl_xor_sync(0xffffffffu, x, offset));
    if (threadIdx.x % 32 == 0) s_.warp[turn_][threadIdx.x / 32] = bits(x);
    __syncthreads();
    x = value<T>(s_.warp[turn_][0]);
#pragma unroll
    for (int w = 1; w < kWarps; ++w) x = op(x, value<T>(s_.warp[turn_][w]));
    turn_ ^= 1;
    return x;
  }
  // What each block says.
  template <class T>
  __device__ void gather(T mine, T (&all)[kBlocks]) {
    if (threadIdx.x == 0) s_.slot[slot_turn_] = bits(mine);
    sync();
#pragma unroll
    for (int r = 0; r < kBlocks; ++r) all[r] = value<T>(peek(&s_.slot[slot_turn_], r));
    slot_turn_ ^= 1;
  }
  template <class T, class Op>
  __device__ T reduce(T x, Op op) {
    T all[kBlocks];
    gather(in_block(x, op), all);
    x = all[0];
#pragma unroll
    for (int r = 1; r < kBlocks; ++r) x = op(x, all[r]);
    return x;
  }
  // Sum of x over lower threads of the block; `total`: over all.
  __device__ uint64_t scan(uint64_t x, uint64_t* total) {
    uint64_t sum = x;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const uint64_t other = __shfl_up_sync(0xffffffffu, sum, offset);
      if (static_cast<int>(threadIdx.x % 32) >= offset) sum += other;
    }
    if (threadIdx.x % 32 == 31) s_.warp[turn_][threadIdx.x / 32] = sum;
    __syncthreads();
    uint64_t before = 0, all = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      if (w == static_cast<int>(threadIdx.x / 32)) before = all;
      all += s_.warp[turn_][w];
    }
    turn_ ^= 1;
    *total = all;
    return before + sum - x;
  }

  template <class T>
  __device__ static uint64_t bits(T x) {
    static_assert(sizeof(T) == 8);
    return *reinterpret_cast<const uint64_t*>(&x);
  }
  template <class T>
  __device__ static T value(uint64_t x) {
    return *reinterpret_cast<const T*>(&x);
  }

 private:
  // Two copies in turn: between two uses of one lies a barrier that everybody reaches after reading it.
  Shared& s_;
  int turn_ = 0, slot_turn_ = 0;
};

}  // namespace kdelta::sample_cuda
