// The recurrence token by token in fp32 for any K up to 256 and any V, dtype and stride: a block of four warps holds 16
// value rows of one head of one sequence, each warp four rows with its lanes along the keys.
#pragma once

#include "kdelta/ops/kda/cuda_args.cuh"

namespace kdelta::kda_cuda {

constexpr int kScanThreads = 128, kScanRows = 16, kMostKeys = 256;

struct Recurrence {
  int h, v0;
  int64_t begin;
  int len;
  bool decode;  // store after every token, to the row's columns
  bool with_out;
  int n;
  int slot;  // where the state ends up (prefill)
  const float*
      start;  // a state in the chunk schedule's workspace, or null: the pool's slot `source`, or zero when it is 0
  int source;
  int replayed = 0;         // records of `source` to apply first
  bool writes_keys = true;  // a decode row with records: this call puts decays and keys into its own
};

struct RecurrenceShared {
  float q[2][kMostKeys], k[2][kMostKeys], decay[2][kMostKeys];
  float sums[2][4][4];
};

__device__ __forceinline__ float pool_value(const Args& a, int64_t at) {
  return a.state_bf16 ? __bfloat162float(static_cast<const __nv_bfloat16*>(a.state)[at])
                      : static_cast<const float*>(a.state)[at];
}
__device__ __forceinline__ void put_pool(const Args& a, int64_t at, float x) {
  if (a.state_bf16)
    static_cast<__nv_bfloat16*>(a.state)[at] = __float2bfloat16(x);
  else
    static_cast<float*>(a.state)[at] = x;
}
// An element of a state behind one more record, as the token that left it made it.
__device__ __forceinline__ float replayed_value(bool is_bf16, float s, float decay, float k, float u) {
  s = fmaf(k, u, s * decay);
  return is_bf16 ? __bfloat162float(__float2bfloat16(s)) : s;
}
__device__ __forceinline__ float sum32(float x) {
#pragma unroll
  for (int m = 16; m > 0; m >>= 1) x += __shfl_xor_sync(~0u, x, m);
  return x;
}

// Where the chunk schedule's workspace keeps element (row, key) of a 128 x 128 state: the order of wgmma's
// accumulators.
__device__ __forceinline__ int workspace_index(int row, int key) {
  const int group = row >> 6, thread = (row >> 4 & 3) * 32 + (row & 7) * 4 + (key >> 1 & 3);
  const int piece = (key >> 6) * 8 + (key >> 3 & 7), word = (row >> 3 & 1) * 2 + (key & 1);
  return ((group * 16 + piece) * 128 + thread) * 4 + word;
}

// kPerLane keys a lane. Every thread of the block calls it alike.
template <int kPerLane>
__device__ void run_recurrence(const Args& a, const Recurrence& r, RecurrenceShared& shared) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const float A = __expf(__ldg(a.a_log + r.h));
  float s[4][kPerLane];
  int row[4] = {};
  auto place = [&](int slot, int i, int d) {
    return slot * a.state_slot + (static_cast<int64_t>(r.h) * a.V + row[i]) * a.K + d;
  };
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    row[i] = r.v0 + warp * 4 + i;
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) {
      const int d = lane + 32 * j;
      s[i][j] = 0;
      if (row[i] >= a.V || d >= a.K) continue;
      if (r.start != nullptr)
        s[i][j] = r.start[workspace_index(row[i], d)];
      else if (r.source != 0)
        s[i][j] = pool_value(a, place(r.source, i, d));
    }
  }
  for (int x = 0; x < r.replayed; ++x) {
    const float* record = record_of(a, r.source, x, r.h);
    float u[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) u[i] = row[i] < a.V ? record[2 * a.K + row[i]] : 0.0f;
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) {
      const int d = lane + 32 * j;
      if (d >= a.K) continue;
      const float decay = record[d], k = record[a.K + d];
#pragma unroll
      for (int i = 0; i < 4; ++i) s[i][j] = replayed_value(a.state_bf16, s[i][j], decay, k, u[i]);
    }
  }
  auto store = [&](int slot) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < kPerLane; ++j)
        if (row[i] < a.V && lane + 32 * j < a.K) put_pool(a, place(slot, i, lane + 32 * j), s[i][j]);
  };
  for (int step = 0; step < r.len; ++step) {
    const int64_t t = r.begin + step;
    const int buffer = step & 1;
    float kk = 0, qq = 0, qk = 0;
    for (int d = threadIdx.x; d < a.K; d += kScanThreads) {
      const float q = element(a.q, t, r.h, d), k = element(a.k, t, r.h, d);
      const float z = element(a.gate, t, r.h, d) + __ldg(a.dt_bias + r.h * a.dt_head + d);
      shared.q[buffer][d] = q, shared.k[buffer][d] = k;
      shared.decay[buffer][d] = expf(log_decay(a, A, z));
      kk += k * k, qq += q * q, qk += q * k;
    }
    kk = sum32(kk), qq = sum32(qq), qk = sum32(qk);
    if (lane == 0)
      shared.sums[buffer][warp][0] = kk, shared.sums[buffer][warp][1] = qq, shared.sums[buffer][warp][2] = qk;
    __syncthreads();
    kk = qq = qk = 0;
#pragma unroll
    for (int w = 0; w < 4; ++w)
      kk += shared.sums[buffer][w][0], qq += shared.sums[buffer][w][1], qk += shared.sums[buffer][w][2];
    const float fk = a.l2 ? rsqrtf(kk + 1e-6f) : 1.0f, fq = a.l2 ? a.scale * rsqrtf(qq + 1e-6f) : a.scale;
    qk *= fk * fq;
    const float beta = beta_of(a, t, r.h);
    float* record = r.decode && a.records != nullptr && step > 0 ? record_of(a, r.slot, step - 1, r.h) : nullptr;
    if (record != nullptr && r.writes_keys)
      for (int d = threadIdx.x; d < a.K; d += kScanThreads)
        record[d] = shared.decay[buffer][d], record[a.K + d] = shared.k[buffer][d] * fk;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float v = row[i] < a.V ? element(a.v, t, r.h, row[i]) : 0.0f;
      float kept = 0, seen = 0;
#pragma unroll
      for (int j = 0; j < kPerLane; ++j) {
        const int d = lane + 32 * j;
        if (d >= a.K) continue;
        s[i][j] *= shared.decay[buffer][d];
        kept = fmaf(shared.k[buffer][d] * fk, s[i][j], kept);
        seen = fmaf(shared.q[buffer][d] * fq, s[i][j], seen);
      }
      kept = sum32(kept), seen = sum32(seen);
      const float delta = beta * (v - kept);
#pragma unroll
      for (int j = 0; j < kPerLane; ++j) {
        const int d = lane + 32 * j;
        if (d < a.K) s[i][j] = fmaf(shared.k[buffer][d] * fk, delta, s[i][j]);
      }
      if (record != nullptr && lane == 0 && row[i] < a.V) record[2 * a.K + row[i]] = delta;
      if (r.with_out && lane == 0 && row[i] < a.V) put_out(a, t, r.h, row[i], fmaf(qk, delta, seen));
    }
    if (a.state_bf16 && (r.decode || (step + 1) % 64 == 0))
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < kPerLane; ++j) s[i][j] = __bfloat162float(__float2bfloat16(s[i][j]));
    if (r.decode && record == nullptr) store(slot_of(a, r.n, step));
    for (int x = 0; r.with_out && !r.decode && x < a.snapshots; ++x) {
      const int32_t* q = a.snapshot + x * a.snapshot_row;
      if (q[2] != -1 && q[0] == r.n && q[1] == step + 1) {
        if (faults_of_snapshot(a, x) == 0) store(q[2]);
      }
    }
  }
  if (!r.decode) store(r.slot);
}

__device__ __forceinline__ void run_recurrence_of(const Args& a, const Recurrence& r, RecurrenceShared& shared) {
  if (a.K <= 128)
    run_recurrence<4>(a, r, shared);
  else
    run_recurrence<8>(a, r, shared);
}

}  // namespace kdelta::kda_cuda
