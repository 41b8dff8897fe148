// The last kernel of a prefill.
#include "kdelta/ops/common/cuda/launch.cuh"
#include "kdelta/ops/kda/cuda_plan.cuh"
#include "kdelta/ops/kda/cuda_ptx.cuh"
#include "kdelta/ops/kda/cuda_recurrence.cuh"

namespace kdelta::kda_cuda {
namespace {

// Few blocks for what is rare: value rows whose chunk factors or states left the range of fp16 run again token by
// token, and snapshots inside a chunk advance from the whole chunk before them.
__global__ void __launch_bounds__(kScanThreads)
    finish_kernel(const __grid_constant__ Args a, const __grid_constant__ Workspace w) {
  __shared__ RecurrenceShared shared;
  cuda::pdl_wait();
  cuda::pdl_trigger();
  const int repairs = w.plan->repairs * 4;
  for (int i = static_cast<int>(blockIdx.x); i < repairs; i += static_cast<int>(gridDim.x)) {
    const Repair x = w.repair[i / 4];
    const Prefix prefix = w.prefix[x.sequence], next = w.prefix[x.sequence + 1];
    const int begin = __ldg(a.cu + x.sequence), segments = next.segments - prefix.segments;
    const float* start =
        segments > 1 ? w.h + (static_cast<int64_t>(next.segments - 1) * a.H + x.head) * 16384 : nullptr;
    __syncthreads();
    run_recurrence<4>(a,
                      {.h = x.head,
                       .v0 = x.half * 64 + i % 4 * kScanRows,
                       .begin = begin,
                       .len = __ldg(a.cu + x.sequence + 1) - begin,
                       .decode = false,
                       .with_out = true,
                       .n = x.sequence,
                       .slot = w.sequence[x.sequence].first,
                       .start = start,
                       .source = w.sequence[x.sequence].source},
                      shared);
  }
  const int tails = a.snapshots * a.H * 8;
  for (int i = static_cast<int>(blockIdx.x); i < tails; i += static_cast<int>(gridDim.x)) {
    const int number = i / (8 * a.H);
    if (w.snapshot_next[number] == kNotTaken) continue;
    const int32_t* q = a.snapshot + number * a.snapshot_row;
    const int n = q[0], h = i / 8 % a.H, part = i % 8, rest = q[1] % kChunkTokens;
    if (rest == 0) continue;
    if (w.repaired[(static_cast<int64_t>(n) * a.H + h) * 2 + part / 4] != 0) continue;  // the repair writes it
    __syncthreads();
    run_recurrence<4>(a,
                      {.h = h,
                       .v0 = part * kScanRows,
                       .begin = __ldg(a.cu + n) + q[1] - rest,
                       .len = rest,
                       .decode = false,
                       .with_out = false,
                       .n = n,
                       .slot = q[2],
                       .start = nullptr,
                       .source = q[2]},
                      shared);
  }
}

}  // namespace

void launch_finish(const Exec& ex, const Args& a, const Workspace& w) {
  cuda::launch(ex, "kda", {.grid = 264, .block = kScanThreads, .pdl = true}, finish_kernel, a, w);
}

}  // namespace kdelta::kda_cuda
