// The portable schedule: every row by the recurrence, fp32 throughout. Parity and widths other than 128.
#include "kdelta/ops/common/cuda/launch.cuh"
#include "kdelta/ops/kda/cuda_recurrence.cuh"

namespace kdelta::kda_cuda {
namespace {

__global__ void __launch_bounds__(kScanThreads) portable_kernel(const __grid_constant__ Args a) {
  __shared__ RecurrenceShared shared;
  const int tiles = (a.V + kScanRows - 1) / kScanRows, blocks = (a.n_prefill + a.n_decode) * a.H * tiles;
  const int id = static_cast<int>(blockIdx.x);
  if (id >= blocks) {
    if (id == blocks && threadIdx.x == 0)
      for (int q = 0; q < a.snapshots; ++q)
        if (const uint32_t bits = cuda::snapshot_faults<SlotColumns::all>(a.seq, q, a.slots);
            bits != 0 && a.faults != nullptr)
          atomicOr(a.faults, bits);
    return zero_tail(a, id - blocks, kTailBlocks);
  }
  const int tile = id % tiles, h = id / tiles % a.H, n = id / (tiles * a.H);
  const Row r = read_row(a, n);
  if (r.len == 0 && r.is_sound) return;
  const bool sound = r.is_sound && r.first != -1 && !(n > 0 && __syncthreads_or(meets_lower_row(a, n, r)));
  if (!sound) {
    if (r.first != -1) raise_row(a, n);
    const int v0 = tile * kScanRows;
    if (r.begin >= 0 && r.len > 0 && r.begin + r.len <= a.T)
      zero_out(a, r.begin, r.len, h, v0, a.V - v0 < kScanRows ? a.V - v0 : kScanRows);
    return;
  }
  run_recurrence_of(a,
                    {.h = h,
                     .v0 = tile * kScanRows,
                     .begin = r.begin,
                     .len = r.len,
                     .decode = n >= a.n_prefill,
                     .with_out = true,
                     .n = n,
                     .slot = r.first,
                     .start = nullptr,
                     .source = r.is_fresh ? 0 : r.source},
                    shared);
}

}  // namespace

void launch_portable(const Exec& ex, const Args& a) {
  const int64_t tiles = (a.V + kScanRows - 1) / kScanRows;
  const int64_t blocks = (a.n_prefill + a.n_decode) * a.H * tiles + kTailBlocks;
  cuda::launch(ex, "kda", {.grid = static_cast<unsigned>(blocks), .block = kScanThreads}, portable_kernel, a);
}

}  // namespace kdelta::kda_cuda
