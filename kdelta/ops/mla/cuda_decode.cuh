// Decode on tensor cores: what its kernels share. A row is one head of one token, a tile 32 rows of one sequence, a
// block 32 absolute positions, a unit one block (or one chunk of 16) of one tile. Units are numbered sequence by
// sequence, tile by tile, block by block; a segment is a run of units of one tile that one thread block adds up.
#pragma once

#include "kdelta/ops/common/cuda/async.cuh"
#include "kdelta/ops/common/cuda/fragments.cuh"
#include "kdelta/ops/common/cuda/math.cuh"
#include "kdelta/ops/common/cuda/views.cuh"
#include "kdelta/ops/mla/cuda_layout.h"
#include "kdelta/ops/mla/cuda_paged.cuh"

namespace kdelta::mla_cuda {

struct DecodeArgs {
  PagedArrays seq;
  cuda::HeadRows<const bf16> q;
  cuda::HeadRows<bf16> out;
  const bf16* cache;
  const bf16* kv_b;
  int64_t kv_b_stride;  // elements between rows
  int H;
  float scale;
  bool exact;
  DecodeWork w;
  int from;         // the first sequence that is computed here
  int first, rows;  // the batch: tokens [first, first + rows)
  uint32_t* faults;
};

// Units of a tile: its blocks, or its chunks where the order of sums must not depend on anybody else.
__device__ __forceinline__ int units_of(const DecodeArgs& a, const SequencePiece& p) {
  return a.exact ? (p.blocks() + kChunkBlocks - 1) / kChunkBlocks : p.blocks();
}

// Where the shares of the thread blocks begin, when units are dealt in runs.
struct Shares {
  int units, blocks;
  // units * i / blocks, in 32 bits: a division of 64 is long, and every thread block begins with some.
  __device__ __forceinline__ int begin(int i) const { return units / blocks * i + units % blocks * i / blocks; }
  // The thread block that has the unit.
  __device__ __forceinline__ int owner(int unit) const {
    if (units < (1 << 30) / blocks) return ((unit + 1) * blocks - 1) / units;
    return static_cast<int>(((int64_t{unit} + 1) * blocks - 1) / units);
  }
};
__device__ __forceinline__ Shares shares_of(const DecodeArgs& a, int units) {
  return {units, max(1, min((units + kLeastBlocks - 1) / kLeastBlocks, a.w.thread_blocks))};
}

// The last piece whose first unit (tile) is not behind x.
template <int SequencePiece::*kBegin>
__device__ __forceinline__ int find(const SequencePiece* piece, int n, int x) {
  int low = 0, high = n;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (piece[middle].*kBegin <= x)
      low = middle;
    else
      high = middle;
  }
  return low;
}

// Sequences from the `from`-th on in the absorbed form.
void run_absorbed(const Exec& ex, const MlaArgs& a, const MlaDesc& d, int from, Layout& layout);
void launch_decode_attend(const Exec& ex, const DecodeArgs& a, const MlaDesc& d);

}  // namespace kdelta::mla_cuda
