// A call of kda as the device sees it: raw pointers and strides, all lengths and slots in device memory. K = V = 128 in
// the fast kernels, any width in the portable one.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kdelta/core/exec.h"
#include "kdelta/ops/common/cuda/sequences.cuh"
#include "kdelta/ops/kda/variants.h"

namespace kdelta::kda_cuda {

struct Operand {
  const void* data;
  int64_t token, head;  // strides in elements; the last axis is dense
  bool is_bf16;
};

struct Args {
  Operand q, k, v, gate, beta;
  const float* a_log;
  const float* dt_bias;
  int64_t dt_head;
  void* out;
  int64_t out_token, out_head;
  bool out_bf16;
  void* state;  // [slots, H, V, K]
  int64_t state_slot;
  bool state_bf16;
  float* records;  // [slots, columns-1, H, 2K + V]; null: each draft column has a slot
  int64_t record_slot, record_row;
  const int32_t* cu;
  const int32_t* slot;
  int64_t slot_row;
  const int32_t* accepted;
  const uint8_t* fresh;
  const int32_t* snapshot;
  int64_t snapshot_row;
  int count, n_prefill, n_decode, columns, snapshots;
  int slot_columns;  // columns of `slot` that name states: with records the first alone
  int64_t T, slots;
  int H, K, V;
  bool bounded, beta_raw, l2;
  float lower_bound, scale;
  uint32_t* faults;  // Exec::faults
  cuda::SequenceArrays seq;
};

// One sequence's place in the batch and in the pool.
struct Row {
  int begin, len;
  int source;               // slot of the start state; meaningless when fresh
  int first;                // slot of column 0; -1: a padded row
  int replayed;             // records to apply to the start state, of a sound row
  bool is_fresh, is_sound;  // unsound: accepted, a slot or cu out of range
};

__device__ __forceinline__ int slot_of(const Args& a, int n, int column) {
  return __ldg(a.slot + n * a.slot_row + column);
}
__device__ __forceinline__ bool in_pool(const Args& a, int slot) {
  return slot >= 1 && slot < a.slots;
}
// Columns that row n writes, counted from column 0.
__device__ __forceinline__ int written_columns(const Args& a, int n, int len) {
  return n < a.n_prefill || a.slot_columns == 1 ? 1 : len;
}
// Record j of one head in a slot: exp(g) [K] | kn [K] | u [V].
__device__ __forceinline__ float* record_of(const Args& a, int slot, int j, int h) {
  return a.records + slot * a.record_slot + j * a.record_row + static_cast<int64_t>(h) * (2 * a.K + a.V);
}

// Independent loads first: one round trip where a row has one column, two otherwise.
__device__ __forceinline__ Row read_row(const Args& a, int n) {
  Row r;
  r.begin = __ldg(a.cu + n);
  const int end = __ldg(a.cu + n + 1), accepted = __ldg(a.accepted + n);
  r.is_fresh = __ldg(a.fresh + n) != 0;
  r.first = slot_of(a, n, 0);
  r.len = end - r.begin;
  const bool accepted_fits = accepted >= 1 && accepted <= a.columns;
  r.source = accepted_fits && accepted > 1 && a.slot_columns > 1 ? slot_of(a, n, accepted - 1) : r.first;
  r.replayed = a.records == nullptr || r.is_fresh ? 0 : accepted - 1;
  r.is_sound = r.begin >= 0 && r.len >= 0 && end <= a.T && accepted_fits && (r.is_fresh || in_pool(a, r.source)) &&
               in_pool(a, r.first) && (n < a.n_prefill || r.len <= a.columns);
  if (!r.is_sound) return r;
  for (int c = 1; c < written_columns(a, n, r.len); ++c) r.is_sound &= in_pool(a, slot_of(a, n, c));
  return r;
}

// Does a lower row name a slot that row n uses? The threads of the block share the rows; each returns its part.
__device__ __forceinline__ bool meets_lower_row(const Args& a, int n, const Row& r) {
  bool met = false;
  for (int m = threadIdx.x; m < n; m += blockDim.x) {
    const int len = __ldg(a.cu + m + 1) - __ldg(a.cu + m), first = slot_of(a, m, 0);
    if (len <= 0 || first == -1) continue;
    if (a.slot_columns == 1) {
      met |= first == r.first;
      continue;
    }
    const int written = written_columns(a, m, len), read = __ldg(a.fresh + m) ? -1 : __ldg(a.accepted + m) - 1;
    for (int c = 0; c < a.columns; ++c) {
      if (c >= written && c != read) continue;
      const int s = slot_of(a, m, c);
      met |= !r.is_fresh && s == r.source;
      for (int mine = 0; mine < written_columns(a, n, r.len); ++mine) met |= s == slot_of(a, n, mine);
    }
  }
  return met;
}

// What is wrong with a row found unsound, or to meet a lower one: a thread's share.
__device__ __forceinline__ uint32_t faults_of_row(const Args& a, int n, int first, int step) {
  return a.records != nullptr ? cuda::row_faults<SlotColumns::first>(a.seq, n, a.T, a.slots, first, step)
                              : cuda::row_faults<SlotColumns::all>(a.seq, n, a.T, a.slots, first, step);
}
// Raises it. Every thread of the block calls it.
__device__ __forceinline__ void raise_row(const Args& a, int n) {
  const uint32_t faults = faults_of_row(a, n, static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x));
  if (faults != 0 && a.faults != nullptr) atomicOr(a.faults, faults);
}
__device__ __forceinline__ uint32_t faults_of_snapshot(const Args& a, int i) {
  return a.records != nullptr ? cuda::snapshot_faults<SlotColumns::first>(a.seq, i, a.slots)
                              : cuda::snapshot_faults<SlotColumns::all>(a.seq, i, a.slots);
}

__device__ __forceinline__ float element(const Operand& x, int64_t t, int h, int d) {
  const int64_t at = t * x.token + h * x.head + d;
  return x.is_bf16 ? __bfloat162float(static_cast<const __nv_bfloat16*>(x.data)[at])
                   : static_cast<const float*>(x.data)[at];
}
__device__ __forceinline__ void put_out(const Args& a, int64_t t, int h, int d, float value) {
  const int64_t at = t * a.out_token + h * a.out_head + d;
  if (a.out_bf16)
    static_cast<__nv_bfloat16*>(a.out)[at] = __float2bfloat16(value);
  else
    static_cast<float*>(a.out)[at] = value;
}

__device__ __forceinline__ float sigmoid(float x) {
  return 1.0f / (1.0f + __expf(-x));
}
// Log decay of one channel from its raw gate plus bias; A = exp(a_log).
__device__ __forceinline__ float log_decay(const Args& a, float A, float z) {
  if (a.bounded) return a.lower_bound * sigmoid(A * z);
  return -A * (z > 20.0f ? z : log1pf(__expf(z)));
}
__device__ __forceinline__ float beta_of(const Args& a, int64_t t, int h) {
  const float b = element(a.beta, t, 0, h);
  return a.beta_raw ? sigmoid(b) : b;
}

// Writes zeros to `width` value channels from `v0` on of `len` tokens of one head.
__device__ __forceinline__ void zero_out(const Args& a, int64_t begin, int64_t len, int h, int v0, int width) {
  for (int64_t i = threadIdx.x; i < len * width; i += blockDim.x)
    put_out(a, begin + i / width, h, v0 + static_cast<int>(i % width), 0.0f);
}
// Rows of out past the last sequence, shared by `blocks` blocks.
__device__ __forceinline__ void zero_tail(const Args& a, int block, int blocks) {
  const int64_t begin = __ldg(a.cu + a.count);
  if (begin < 0) return;
  const int64_t width = static_cast<int64_t>(a.H) * a.V, n = (a.T - begin) * width;
  for (int64_t i = static_cast<int64_t>(block) * blockDim.x + threadIdx.x; i < n;
       i += static_cast<int64_t>(blocks) * blockDim.x)
    put_out(a, begin + i / width, static_cast<int>(i % width / a.V), static_cast<int>(i % a.V), 0.0f);
}

constexpr int kTailBlocks = 16;

Operand operand(const AnyConstView& x);
Args arguments(const Exec& ex, const KdaArgs& a, const KdaDesc& d);

// Launchers; every one only enqueues.
void launch_portable(const Exec& ex, const Args& a);
void launch_step(const Exec& ex, const Args& a);  // decode rows: verify when rows may have drafts
void launch_verify(const Exec& ex, const Args& a);
void launch_replay_prefill(const Exec& ex,
                           const Args& a);  // applies, in place, the records that prefill rows start from

}  // namespace kdelta::kda_cuda
