// kda_replay, and what a prefill starts from: the updates that records describe, on a state in its slot. No element of
// a state meets another, so any widths are taken alike.
#include "kdelta/ops/common/cuda/launch.cuh"
#include "kdelta/ops/kda/cuda_args.cuh"
#include "kdelta/ops/kda/variants.h"

namespace kdelta::kda_cuda {
namespace {

constexpr int kThreads = 128, kRows = 4, kLaneKeys = 4;  // a warp's rows, a lane's keys
constexpr int kBlockRows = kRows * kThreads / 32;

struct Pool {
  void* state;
  int64_t state_slot;
  bool is_bf16;
  const float* records;
  int64_t record_slot, record_row;
  int64_t slots;
  int H, K, V;
  __host__ __device__ int tiles() const { return (V + kBlockRows - 1) / kBlockRows; }
};

// The first `count` records of the slot, on value rows [tile * kBlockRows, ...) of head h.
template <class S>
__device__ void replay_tile(const Pool& x, int slot, int count, int h, int tile) {
  const int lane = threadIdx.x & 31, row0 = tile * kBlockRows + static_cast<int>(threadIdx.x >> 5) * kRows;
  const float* first = x.records + slot * x.record_slot + static_cast<int64_t>(h) * (2 * x.K + x.V);
  S* state = static_cast<S*>(x.state) + slot * x.state_slot + static_cast<int64_t>(h) * x.V * x.K;
  for (int d0 = lane; d0 < x.K; d0 += 32 * kLaneKeys) {
    float s[kRows][kLaneKeys];
    bool held[kRows][kLaneKeys];
#pragma unroll
    for (int i = 0; i < kRows; ++i)
#pragma unroll
      for (int j = 0; j < kLaneKeys; ++j) {
        held[i][j] = row0 + i < x.V && d0 + 32 * j < x.K;
        s[i][j] = held[i][j] ? cuda::to_f32(state[static_cast<int64_t>(row0 + i) * x.K + d0 + 32 * j]) : 0.0f;
      }
#pragma unroll 2
    for (int n = 0; n < count; ++n) {
      const float* record = first + n * x.record_row;
      float decay[kLaneKeys], k[kLaneKeys], u[kRows];
#pragma unroll
      for (int j = 0; j < kLaneKeys; ++j) {
        const bool inside = d0 + 32 * j < x.K;
        decay[j] = inside ? record[d0 + 32 * j] : 0.0f, k[j] = inside ? record[x.K + d0 + 32 * j] : 0.0f;
      }
#pragma unroll
      for (int i = 0; i < kRows; ++i) u[i] = row0 + i < x.V ? record[2 * x.K + row0 + i] : 0.0f;
#pragma unroll
      for (int i = 0; i < kRows; ++i)
#pragma unroll
        for (int j = 0; j < kLaneKeys; ++j)
          s[i][j] = cuda::to_f32(cuda::from_f32<S>(fmaf(k[j], u[i], s[i][j] * decay[j])));
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i)
#pragma unroll
      for (int j = 0; j < kLaneKeys; ++j)
        if (held[i][j]) state[static_cast<int64_t>(row0 + i) * x.K + d0 + 32 * j] = cuda::from_f32<S>(s[i][j]);
  }
}

__device__ __forceinline__ void replay(const Pool& x, int slot, int count, int h, int tile) {
  if (x.is_bf16)
    replay_tile<bf16>(x, slot, count, h, tile);
  else
    replay_tile<float>(x, slot, count, h, tile);
}

struct Commits {
  const int32_t* slot;
  const int32_t* accepted;
  int64_t slot_stride, accepted_stride;
  int64_t columns;
  uint32_t* faults;
};

// Rows and heads along x, tiles along y.
__global__ void __launch_bounds__(kThreads) replay_kernel(const Pool pool, const Commits c) {
  const int n = static_cast<int>(blockIdx.x) / pool.H, h = static_cast<int>(blockIdx.x) % pool.H;
  const int slot = c.slot[n * c.slot_stride], accepted = c.accepted[n * c.accepted_stride];
  if (slot == -1) return;
  bool met = false;
  for (int m = threadIdx.x; m < n; m += kThreads) met |= c.slot[m * c.slot_stride] == slot;
  met = __syncthreads_or(met) != 0;
  const bool inside = slot >= 1 && slot < pool.slots, fits = accepted >= 1 && accepted <= c.columns;
  if (inside && fits && !met) {
    if (accepted > 1) replay(pool, slot, accepted - 1, h, static_cast<int>(blockIdx.y));
    return;
  }
  if (threadIdx.x == 0 && h == 0 && blockIdx.y == 0)
    cuda::raise(c.faults, !inside ? Fault::slot : !fits ? Fault::accepted : Fault::shared_slot);
}

// The prefill rows of a call of kda; the plan names the faults of rows that are passed over here.
__global__ void __launch_bounds__(kThreads) replay_prefill_kernel(const __grid_constant__ Args a, const Pool pool) {
  const int n = static_cast<int>(blockIdx.x) / a.H, h = static_cast<int>(blockIdx.x) % a.H;
  const Row r = read_row(a, n);
  if (!r.is_sound || r.len == 0 || r.replayed == 0) return;
  if (__syncthreads_or(meets_lower_row(a, n, r))) return;
  replay(pool, r.first, r.replayed, h, static_cast<int>(blockIdx.y));
}

}  // namespace

void launch_replay_prefill(const Exec& ex, const Args& a) {
  const Pool pool{a.state, a.state_slot, a.state_bf16, a.records, a.record_slot, a.record_row, a.slots, a.H, a.K, a.V};
  const dim3 grid(static_cast<unsigned>(a.n_prefill * a.H), static_cast<unsigned>(pool.tiles()));
  cuda::launch(ex, "kda", {.grid = grid, .block = kThreads}, replay_prefill_kernel, a, pool);
}

}  // namespace kdelta::kda_cuda

namespace kdelta {

void kda_replay_cuda(const Exec& ex, const KdaReplayArgs& a, const KdaDesc& d, void*) {
  using namespace kda_cuda;
  const Pool pool{.state = a.state.data,
                  .state_slot = a.state.stride[0],
                  .is_bf16 = a.state.dtype == DType::bf16,
                  .records = a.records.data,
                  .record_slot = a.records.stride[0],
                  .record_row = a.records.stride[1],
                  .slots = a.state.dim(0),
                  .H = static_cast<int>(d.H),
                  .K = static_cast<int>(d.K),
                  .V = static_cast<int>(d.V)};
  const Commits commits{.slot = a.slot.data,
                        .accepted = a.accepted.data,
                        .slot_stride = a.slot.stride[0],
                        .accepted_stride = a.accepted.stride[0],
                        .columns = d.records + 1,
                        .faults = ex.faults};
  const dim3 grid(static_cast<unsigned>(d.N * d.H), static_cast<unsigned>(pool.tiles()));
  cuda::launch(ex, "kda_replay", {.grid = grid, .block = kThreads}, replay_kernel, pool, commits);
}

}  // namespace kdelta
