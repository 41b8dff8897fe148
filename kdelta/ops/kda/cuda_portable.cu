// The portable schedule: every row by the recurrence, fp32 throughout. Parity and widths other than 128.
#include "kdelta/ops/common/cuda/launch.cuh"
#include "kdelta/ops/kda/cuda_recurrence.cuh"

namespace kdelta::kda_cuda {
namespace {

// Decays and keys of a head's records serve all its value channels, so where drafts leave records one block takes a
// decode row's head, and writes new ones when the last channels have replayed the old.
__device__ __host__ __forceinline__ int blocks_per_decode(const Args& a, int tiles) {
  return a.records != nullptr ? 1 : tiles;
}

__global__ void __launch_bounds__(kScanThreads) portable_kernel(const __grid_constant__ Args a) {
  __shared__ RecurrenceShared shared;
  const int tiles = (a.V + kScanRows - 1) / kScanRows, prefill = a.n_prefill * a.H * tiles;
  const int per_decode = blocks_per_decode(a, tiles), blocks = prefill + a.n_decode * a.H * per_decode;
  const int id = static_cast<int>(blockIdx.x);
  if (id >= blocks) {
    if (id == blocks && threadIdx.x == 0)
      for (int q = 0; q < a.snapshots; ++q)
        if (const uint32_t bits = faults_of_snapshot(a, q); bits != 0 && a.faults != nullptr) atomicOr(a.faults, bits);
    return zero_tail(a, id - blocks, kTailBlocks);
  }
  const bool decode = id >= prefill;
  const int at = decode ? id - prefill : id, per_head = decode ? per_decode : tiles;
  const int h = at / per_head % a.H, n = (decode ? a.n_prefill : 0) + at / (per_head * a.H);
  const int first = per_head == 1 ? 0 : at % per_head, last = per_head == 1 ? tiles : first + 1;
  const Row r = read_row(a, n);
  if (r.len == 0 && r.is_sound) return;
  const bool sound = r.is_sound && r.first != -1 && !(n > 0 && __syncthreads_or(meets_lower_row(a, n, r)));
  if (!sound) {
    if (r.first != -1) raise_row(a, n);
    const int v0 = first * kScanRows, v1 = min(last * kScanRows, a.V);
    if (r.begin >= 0 && r.len > 0 && r.begin + r.len <= a.T) zero_out(a, r.begin, r.len, h, v0, v1 - v0);
    return;
  }
  for (int tile = first; tile < last; ++tile) {
    if (tile > first) __syncthreads();  // shared memory is used again
    run_recurrence_of(a,
                      {.h = h,
                       .v0 = tile * kScanRows,
                       .begin = r.begin,
                       .len = r.len,
                       .decode = decode,
                       .with_out = true,
                       .n = n,
                       .slot = r.first,
                       .start = nullptr,
                       .source = r.is_fresh ? 0 : r.source,
                       .replayed = r.replayed,
                       .writes_keys = tile + 1 == tiles},
                      shared);
  }
}

}  // namespace

void launch_portable(const Exec& ex, const Args& a) {
  const int tiles = (a.V + kScanRows - 1) / kScanRows;
  const int64_t blocks = static_cast<int64_t>(a.n_prefill) * a.H * tiles +
                         static_cast<int64_t>(a.n_decode) * a.H * blocks_per_decode(a, tiles) + kTailBlocks;
  cuda::launch(ex, "kda", {.grid = static_cast<unsigned>(blocks), .block = kScanThreads}, portable_kernel, a);
}

}  // namespace kdelta::kda_cuda
