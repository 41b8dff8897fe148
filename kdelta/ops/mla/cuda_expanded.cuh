// Prefill in the expanded form: what its kernels share. Latents of all prefill sequences are laid side by side, kv_b
// turns them into keys and values of some heads at a time, and tiles of 128 queries meet blocks of 128 positions.
#pragma once

#include "kdelta/ops/common/cuda/views.cuh"
#include "kdelta/ops/mla/cuda_layout.h"
#include "kdelta/ops/mla/cuda_paged.cuh"

namespace kdelta::mla_cuda {

struct ExpandedArgs {
  PagedArrays seq;
  cuda::HeadRows<const bf16> q;
  cuda::HeadRows<bf16> out;
  const bf16* cache;
  int n_prefill, H;
  float scale;
  ExpandedWork w;
  uint32_t* faults;
};

// The last piece whose first tile (row) is not behind x.
template <int PrefillPiece::*kBegin>
__device__ __forceinline__ int find(const PrefillPiece* piece, int n, int x) {
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

// Heads [first, first + count), whose keys and values are there.
void launch_expanded_attend(const Exec& ex, const ExpandedArgs& a, const MlaDesc& d, int first, int count);

}  // namespace kdelta::mla_cuda
