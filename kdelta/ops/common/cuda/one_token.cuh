// Projection of one token: the products and the order of sums of skinny.cuh, so the bits are the same, but memory is
// read as it likes best. A warp copies its 16 weight rows in pieces of several lines each and takes operands from
// shared memory across lanes.
#pragma once

#include "kdelta/ops/common/cuda/skinny.cuh"

namespace kdelta::cuda {

template <DType kFormat>
struct OneTokenRing {
  using F = WeightFormat<kFormat>;
  static constexpr int kColumns = 4 * F::kColumns;  // of a step: 64 bytes of every row
  static constexpr int kSteps = 4, kDepth = 2;  // of a stage; stages, for three blocks of seven warps a multiprocessor
  static constexpr int kRowBytes = 64 * kSteps, kStageColumns = kSteps * kColumns;
  static constexpr int kSegmentStages = kSegment / kStageColumns;
  static constexpr int kWeightBytes = kSkinnyRows * kRowBytes, kTokenBytes = 2 * kStageColumns;
  static constexpr int kWarpBytes = kDepth * (kWeightBytes + kTokenBytes);
  static_assert(kSegmentStages >= 1 && kColumns == mma_columns(kFormat));
};
template <DType kFormat>
int one_token_shared_bytes(int64_t K) {
  return skinny_warps(K) * OneTokenRing<kFormat>::kWarpBytes + skinny_segments(K) * kSkinnyRows * 4;
}

// 16 neighbouring rows of a matrix, from row n0 on; those behind the last are the last.
struct NeighbourRows {
  const uint8_t *bytes, *scales;
  int row_bytes, scale_row_bytes, last;
  __device__ __forceinline__ NeighbourRows(const WeightRows& w, int64_t n0)
      : bytes(w.data + n0 * w.row_bytes),
        scales(w.scale + n0 * w.scale_row_bytes),
        row_bytes(static_cast<int>(w.row_bytes)),
        scale_row_bytes(static_cast<int>(w.scale_row_bytes)),
        last(static_cast<int>(min(w.rows - n0, int64_t{16})) - 1) {}
  __device__ __forceinline__ const uint8_t* data(int r) const { return bytes + min(r, last) * row_bytes; }
  __device__ __forceinline__ const uint8_t* scale(int r) const { return scales + min(r, last) * scale_row_bytes; }
};

// Sixteen weight rows, row.data(r) and row.scale(r), times the token that x() gives behind the wait for the kernels in
// front; then the first warp calls put(r, sum), each lane for row r = lane % 16. `shared` holds
// one_token_shared_bytes(). `early`: the kernel may begin while those in front still run. Every thread of the block
// calls it.
template <DType kFormat, class Row, class X, class Put>
__device__ __forceinline__ void one_token_tile(const Row& row, int64_t columns, X&& token, uint8_t* shared, bool early,
                                               Put put) {
  using Ring = OneTokenRing<kFormat>;
  using F = WeightFormat<kFormat>;
  constexpr int kDepth = Ring::kDepth, kSteps = Ring::kSteps;
  constexpr int kRowLanes = Ring::kRowBytes / 16, kCopies = kSkinnyRows * kRowLanes / 32;
  constexpr int kTokenWords = F::kColumns / 8, kTokenLanes = Ring::kTokenBytes / 16;
  const int K = static_cast<int>(columns);
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, q = lane % 4;
  const int warp = static_cast<int>(threadIdx.x) / 32, warps = static_cast<int>(blockDim.x) / 32;
  const int segments = (K + kSegment - 1) / kSegment;
  float* partial = reinterpret_cast<float*>(shared + warps * Ring::kWarpBytes);
  const uint32_t ring =
      static_cast<uint32_t>(__cvta_generic_to_shared(shared)) + static_cast<uint32_t>(warp * Ring::kWarpBytes);

  // The stages of the warp: those of segments warp, warp + warps, ...; the last may lack some of a row's end.
  const int own = segments > warp ? (segments - warp + warps - 1) / warps : 0;
  int count = own * Ring::kSegmentStages;
  if (own > 0 && warp + (own - 1) * warps == segments - 1)
    count -= Ring::kSegmentStages - (K - (segments - 1) * kSegment + Ring::kStageColumns - 1) / Ring::kStageColumns;
  const auto first_column = [&](int j) {
    return (warp + j / Ring::kSegmentStages * warps) * kSegment + j % Ring::kSegmentStages * Ring::kStageColumns;
  };
  const auto byte_of = [](int column) { return column / Ring::kColumns * 64; };

  // What will be copied first comes to L2 while the kernels in front end: L2 sees whatever they write.
  constexpr int kLines = kSkinnyRows * Ring::kRowBytes / 128;
  for (int i = lane; early && i < kDepth * kLines; i += 32) {
    const int j = i / kLines, r = i % kLines / (Ring::kRowBytes / 128), line = i % (Ring::kRowBytes / 128);
    const int at = byte_of(first_column(j)) + line * 128;
    if (j < count && at < byte_of(K)) asm volatile("prefetch.global.L2 [%0];" ::"l"(row.data(r) + at));
  }
  pdl_wait();
  const bf16* const x = token();

  const auto copy_stage = [&](int slot, int j) {
    if (j < count) {
      const int column = first_column(j), at = byte_of(column) + lane % kRowLanes * 16;
      const uint32_t to = ring + static_cast<uint32_t>(slot * (Ring::kWeightBytes + Ring::kTokenBytes));
      if (at < byte_of(K))
#pragma unroll
        for (int i = 0; i < kCopies; ++i) {
          const int r = i * (32 / kRowLanes) + lane / kRowLanes;
          // Whole lines: asking for the rest of each as well costs time. Rows that a product takes together fall on
          // other banks.
          copy16(to + r * Ring::kRowBytes + ((lane % kRowLanes) ^ (r % 2 * 4)) * 16, row.data(r) + at);
        }
#pragma unroll
      for (int i = lane; i < kTokenLanes; i += 32)
        if (column + 8 * i < K) copy16(to + Ring::kWeightBytes + i * 16, x + column + 8 * i);
    }
    copies_commit();
  };
  // Scales a stage ahead.
  uint32_t factor[2][kSteps] = {}, next_factor[2][kSteps] = {};
  const auto load_scales = [&](int j) {
    if constexpr (F::kScaled) {
      if (j >= count) return;
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int s = 0; s < kSteps; ++s) {
          const int column = first_column(j) + s * Ring::kColumns + q * F::kColumns;
          if (column < K) next_factor[h][s] = load_cached_byte(row.scale(g + 8 * h) + column / kMxBlock);
        }
    }
  };
#pragma unroll
  for (int j = 0; j < kDepth - 1; ++j) copy_stage(j, j);
  load_scales(0);

  float sum[4] = {};
  int slot = 0;
  for (int j = 0; j < count; ++j) {
    copies_wait<kDepth - 2>();
    __syncwarp();  // lanes read what others copied, and have read what is overwritten now
    copy_stage(slot == 0 ? kDepth - 1 : slot - 1, j + kDepth - 1);
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int s = 0; s < kSteps; ++s) factor[h][s] = next_factor[h][s];
    load_scales(j + 1);
    const uint32_t from = ring + static_cast<uint32_t>(slot * (Ring::kWeightBytes + Ring::kTokenBytes));
    slot = slot + 1 == kDepth ? 0 : slot + 1;
    const int column = first_column(j);
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      if (column + s * Ring::kColumns >= K) break;
      uint4 raw[2];
#pragma unroll
      for (int h = 0; h < 2; ++h)
        raw[h] = load_shared16(from + (g + 8 * h) * Ring::kRowBytes + ((4 * s + q) ^ (g % 2 * 4)) * 16);
      const auto multiply = [&](auto slow) {
#pragma unroll
        for (int v = 0; v < kTokenWords; ++v) {
          uint32_t a[4], b[4], c[4];
          F::template unpack<slow()>(raw[0], v, factor[0][s], a);
          F::template unpack<slow()>(raw[1], v, factor[1][s], b);
          match_order<kFormat>(load_shared16(from + Ring::kWeightBytes + ((4 * s + q) * kTokenWords + v) * 16), c);
          mma_bf16(sum, a[0], b[0], a[1], b[1], c[0], c[1]);
          mma_bf16(sum, a[2], b[2], a[3], b[3], c[2], c[3]);
        }
      };
      // One way for the warp, so that nothing diverges.
      if (F::kScaled && __any_sync(0xffffffffu, F::special(raw[0], factor[0][s]) || F::special(raw[1], factor[1][s])))
        multiply(std::true_type{});
      else
        multiply(std::false_type{});
    }
    if ((j + 1) % Ring::kSegmentStages != 0 && j + 1 != count) continue;
    float* to = partial + (warp + j / Ring::kSegmentStages * warps) * kSkinnyRows;
    if (q == 0) to[g] = sum[0], to[g + 8] = sum[2];  // every column of the product is the token
    sum[0] = sum[1] = sum[2] = sum[3] = 0;
  }
  pdl_trigger();  // only now: blocks that come while many of these run take their places unevenly
  __syncthreads();
  if (threadIdx.x >= 32) return;
  const int n = lane % kSkinnyRows;
  float total = partial[n];
  for (int s = 1; s < segments; ++s) total += partial[s * kSkinnyRows + n];
  put(n, total);
}

}  // namespace kdelta::cuda
