// What the CUDA rows of grouped_linear share: the experts' weights as a kernel takes them, and the tile of a CTA.
#pragma once

#include "kdelta/ops/common/cuda/device.cuh"
#include "kdelta/ops/grouped_linear/cuda_tiles.h"
#include "kdelta/ops/grouped_linear/variants.h"

namespace kdelta::grouped {

struct Expert {
  const uint8_t* data;
  const uint8_t* scale;
  int64_t row_bytes, scale_row_bytes;
};

// Experts at equal distances, as a loader lays them, are a first one and steps; others a table in scratch. Either way a
// captured graph never reads the caller's array again.
struct Experts {
  Expert first;
  int64_t data_step, scale_step;  // bytes
  const Expert* table;            // null: by steps
  __device__ __forceinline__ Expert at(int64_t e) const {
    if (table != nullptr) return table[e];
    return {first.data + e * data_step, first.scale + e * scale_step, first.row_bytes, first.scale_row_bytes};
  }
};
// `scratch` holds an Expert for each of `w`; written in stream order where the distances differ.
Experts experts_of(const Exec& ex, std::span<const Matrix> w, void* scratch);

struct Routing {
  const int32_t* begin;  // [E+1]
  const int32_t* row;    // [P]; null: row p
  int64_t P, E, R;
  bool by_pair;
  uint32_t* faults;
};
inline Routing routing_of(const Exec& ex, const GroupedLinearArgs& a, const GroupedLinearDesc& d, int64_t tile) {
  return {.begin = a.expert_begin.data,
          .row = a.row.data,
          .P = d.P,
          .E = d.E,
          .R = a.x.dim(0),
          .by_pair = slots_of(d.P, d.E, tile).by_pair,
          .faults = ex.faults};
}

struct Tile {
  int64_t expert;  // -1: this CTA has nothing to do; E: its pairs get zeros
  int64_t first;   // pair
  int count;
};

// The tile of slot `slot`. Boundaries that are not ascending from 0 to at most P serve nobody: all pairs get zeros and
// the fault is raised. Every thread of the block calls it and gets the same; two barriers.
template <int kTile>
__device__ __forceinline__ Tile find_tile(const Routing& r, int64_t slot) {
  __shared__ int64_t found[2];
  __shared__ int found_count;
  if (threadIdx.x == 0) found[0] = -1;
  __syncthreads();
  int wrong = 0;
  constexpr int kTogether = 8;  // boundaries of a thread on their way at once: a block begins with this wait
  for (int64_t from = threadIdx.x; from <= r.E; from += kTogether * int64_t{blockDim.x}) {
    int64_t begin[kTogether], end[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int64_t e = from + i * int64_t{blockDim.x};
      begin[i] = e <= r.E ? r.begin[e] : 0, end[i] = e < r.E ? r.begin[e + 1] : r.P;
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int64_t e = from + i * int64_t{blockDim.x};
      if (e > r.E) break;
      wrong |= end[i] < begin[i] || (e == 0 && begin[i] != 0);
      const int64_t first = first_pair(slot, r.by_pair, e, begin[i], end[i], kTile);
      if (first >= 0)
        found[0] = e, found[1] = first, found_count = static_cast<int>(min(int64_t{kTile}, end[i] - first));
    }
  }
  wrong = __syncthreads_or(wrong);
  if (wrong == 0) return {found[0], found[1], found_count};
  if (threadIdx.x == 0) cuda::raise(r.faults, Fault::boundaries);
  const int64_t first = first_pair(slot, r.by_pair, 0, 0, r.P, kTile);
  return {first < 0 ? -1 : r.E, first, static_cast<int>(min(int64_t{kTile}, r.P - first))};
}

// The row of x of a pair that has an expert; -1, a fault raised, where there is no such row.
__device__ __forceinline__ int64_t row_of(const Routing& r, int64_t pair) {
  const int64_t row = r.row == nullptr ? pair : r.row[pair];
  if (row >= 0 && row < r.R) return row;
  cuda::raise(r.faults, Fault::row);
  return -1;
}

}  // namespace kdelta::grouped
