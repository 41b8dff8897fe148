// Sequences (ops/common/sequences.h) in a kernel. The host never reads their contents, so a kernel asks here whether a
// row is sound; a row that is not is skipped whole: state as it was, output zero, its fault raised, nobody else
// touched.
#pragma once

#include "kdelta/ops/common/cuda/device.cuh"
#include "kdelta/ops/common/sequences.h"

namespace kdelta::cuda {

struct SequenceArrays {
  const int32_t* cu;
  const int32_t* slot;
  const int32_t* accepted;
  const uint8_t* fresh;
  const int32_t* snapshot;
  int64_t slot_stride, snapshot_stride;
  int count, columns, n_prefill, n_live, snapshots;

  __device__ __forceinline__ int begin(int n) const { return cu[n]; }
  __device__ __forceinline__ int length(int n) const { return cu[n + 1] - cu[n]; }
  __device__ __forceinline__ int32_t slot_at(int n, int column) const { return slot[n * slot_stride + column]; }
  // Neither padding nor empty: only such rows touch state.
  __device__ __forceinline__ bool live(int n) const { return n < n_live && slot_at(n, 0) != -1 && length(n) != 0; }
};

inline SequenceArrays sequence_arrays(const Sequences& s) {
  SequenceArrays a{};
  a.cu = s.cu.data, a.slot = s.slot.data, a.accepted = s.accepted.data, a.fresh = s.fresh.data;
  a.slot_stride = s.slot.stride[0];
  a.count = static_cast<int>(s.count()), a.columns = static_cast<int>(s.columns());
  a.n_prefill = s.n_prefill, a.n_live = s.n_prefill + s.n_decode;
  if (!s.snapshot.null()) {
    a.snapshot = s.snapshot.data, a.snapshot_stride = s.snapshot.stride[0];
    a.snapshots = static_cast<int>(s.snapshot.dim(0));
  }
  return a;
}

// Columns of row n that it writes: prefill the first, decode one per token; an op with one slot a sequence only the
// first.
template <SlotColumns kColumns>
__device__ __forceinline__ int written_columns(const SequenceArrays& s, int n) {
  return kColumns == SlotColumns::all && n >= s.n_prefill ? s.length(n) : 1;
}
// The column that row n starts from when it is not one that it writes; -1 otherwise.
template <SlotColumns kColumns>
__device__ __forceinline__ int start_column(const SequenceArrays& s, int n) {
  if (kColumns == SlotColumns::first || s.fresh[n] != 0) return -1;
  const int column = s.accepted[n] - 1;
  return column >= written_columns<kColumns>(s, n) ? column : -1;
}

// Whether row m claims the slot, by a column it writes or starts from. Its own faults do not matter.
template <SlotColumns kColumns>
__device__ __forceinline__ bool claims(const SequenceArrays& s, int m, int32_t slot) {
  const int written = min(written_columns<kColumns>(s, m), s.columns);
  for (int c = 0; c < written; ++c)
    if (s.slot_at(m, c) == slot) return true;
  const int start = start_column<kColumns>(s, m);
  return start >= 0 && start < s.columns && s.slot_at(m, start) == slot;
}

// The faults of live row n on its own, and of its slots among lower rows `first`, `first` + `step`, ...: a thread's
// share.
template <SlotColumns kColumns>
__device__ __forceinline__ uint32_t row_faults(const SequenceArrays& s, int n, int64_t tokens, int64_t slots, int first,
                                               int step) {
  const int len = s.length(n), accepted = s.accepted[n];
  if (s.begin(n) < 0 || len < 0 || s.cu[n + 1] > tokens) return static_cast<uint32_t>(Fault::boundaries);
  if (accepted < 1 || accepted > s.columns) return static_cast<uint32_t>(Fault::accepted);
  if (n >= s.n_prefill && len > s.columns) return static_cast<uint32_t>(Fault::length);
  const int written = written_columns<kColumns>(s, n), start = start_column<kColumns>(s, n);
  uint32_t faults = 0;
  for (int i = 0; i <= written; ++i) {
    const int column = i < written ? i : start;
    if (column < 0) continue;
    const int32_t slot = s.slot_at(n, column);
    if (slot < 1 || slot >= slots) return static_cast<uint32_t>(Fault::slot);
    for (int m = first; m < n; m += step)
      if (s.live(m) && claims<kColumns>(s, m, slot)) faults |= static_cast<uint32_t>(Fault::shared_slot);
  }
  return faults;
}

// Whether live row n must be skipped; raises its faults. Every thread of the block calls it: a barrier.
template <SlotColumns kColumns>
__device__ __forceinline__ bool row_is_faulty(const SequenceArrays& s, int n, int64_t tokens, int64_t slots,
                                              uint32_t* raised) {
  const uint32_t faults =
      row_faults<kColumns>(s, n, tokens, slots, static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x));
  if (faults != 0 && raised != nullptr) atomicOr(raised, faults);
  return __syncthreads_or(faults != 0) != 0;
}

// The fault of snapshot q, none for padding (slot -1): it names a prefill sequence, one of its tokens, and a slot that
// no row and no lower snapshot has.
template <SlotColumns kColumns>
__device__ __forceinline__ uint32_t snapshot_faults(const SequenceArrays& s, int q, int64_t slots) {
  const int32_t* entry = s.snapshot + q * s.snapshot_stride;
  const int n = entry[0], position = entry[1], slot = entry[2];
  if (slot == -1) return 0;
  const auto fault = static_cast<uint32_t>(Fault::snapshot);
  if (n < 0 || n >= s.n_prefill || position < 1 || position > s.length(n) || slot < 1 || slot >= slots) return fault;
  for (int m = 0; m < s.n_live; ++m)
    if (s.live(m) && claims<kColumns>(s, m, slot)) return static_cast<uint32_t>(Fault::shared_slot);
  for (int p = 0; p < q; ++p)
    if (s.snapshot[p * s.snapshot_stride + 2] == slot) return static_cast<uint32_t>(Fault::shared_slot);
  return 0;
}

}  // namespace kdelta::cuda
