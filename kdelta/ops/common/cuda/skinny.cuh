// Projection of a few tokens on tensor cores, at the rate at which weights can be read: the warps of a block share 16
// weight rows by columns, and each streams its part through a ring in shared memory.
//
// The order of a sum: segments of 512 columns, each a chain of products of 16 columns; segments are added in order. It
// depends on the columns and the weights' format alone, so any number of tokens, warps and blocks gives the same bits.
#pragma once

#include "kdelta/ops/common/cuda/async.cuh"
#include "kdelta/ops/common/cuda/limits.h"
#include "kdelta/ops/common/cuda/weight_fragments.cuh"

namespace kdelta::cuda {

inline constexpr int kSegment = 512;        // columns
inline constexpr int kSkinnyRows = 16;      // weight rows of a block
inline constexpr int kMostSkinnyWarps = 8;  // of a block

inline int skinny_segments(int64_t K) {
  return static_cast<int>((K + kSegment - 1) / kSegment);
}
// Warps of a block: as even a share of the segments as there is.
inline int skinny_warps(int64_t K) {
  const int segments = skinny_segments(K), rounds = (segments + kMostSkinnyWarps - 1) / kMostSkinnyWarps;
  return (segments + rounds - 1) / rounds;
}
inline constexpr int kPartialStride = kSkinnyRows + 4;  // floats of a token in a segment's sums: no bank conflicts

// How a warp's steps are laid out in shared memory: 16-byte words of 32 lanes, those of two weight rows and, beyond
// eight tokens, of the tokens. A lane reads what it copied itself, so nobody waits for anybody. Up to eight tokens are
// read through L1: copied past it by every lane, one token took longer than eight, for the L2 was asked for its few
// lines again and again.
template <DType kFormat, int kTokens8>
struct SkinnyRing {
  using F = WeightFormat<kFormat>;
  static constexpr int kColumns = 4 * F::kColumns, kSteps = kSegment / kColumns;  // of a step; steps of a segment
  static constexpr int kTokenWords = F::kColumns / 8;                             // of a lane and a token
  static constexpr bool kCopiesTokens = kTokens8 > 1;
  static constexpr int kStepBytes = (2 + (kCopiesTokens ? kTokens8 * kTokenWords : 0)) * 512;
  // For three blocks of seven warps on a multiprocessor.
  static constexpr int kDepth = !kCopiesTokens ? 6 : 9216 / kStepBytes < 2 ? 2 : 9216 / kStepBytes;
  static constexpr int kWarpBytes = kDepth * kStepBytes;
  static_assert(kColumns == mma_columns(kFormat));
};
template <DType kFormat, int kTokens8>
int skinny_shared_bytes(int64_t K) {
  return skinny_warps(K) * SkinnyRing<kFormat, kTokens8>::kWarpBytes +
         skinny_segments(K) * 8 * kTokens8 * kPartialStride * 4;
}

// The steps of a warp: those of segments warp, warp + warps, ...
template <int kSteps>
struct WarpSteps {
  int warp, warps, count;
  __device__ __forceinline__ explicit WarpSteps(int steps) {
    warp = static_cast<int>(threadIdx.x) / 32, warps = static_cast<int>(blockDim.x) / 32;
    const int segments = (steps + kSteps - 1) / kSteps;
    const int own = segments > warp ? (segments - warp + warps - 1) / warps : 0;
    count = own * kSteps;
    if (own > 0 && warp + (own - 1) * warps == segments - 1) count -= segments * kSteps - steps;
  }
  __device__ __forceinline__ int segment(int j) const { return warp + j / kSteps * warps; }
  // Among the steps of all columns.
  __device__ __forceinline__ int place(int j) const { return segment(j) * kSteps + j % kSteps; }
};

// Weight rows n0 .. n0 + 15 (those of w) times 8 kTokens8 tokens. x_row(i) is the row of token i, 16-byte aligned, and
// valid for every i (spare ones repeat a row). ready() is called before x is read.
// put(i, n, sum) gets each output of the 8 kTokens8 tokens once. `shared` holds skinny_shared_bytes(). Every thread of
// the block calls it.
template <DType kFormat, int kTokens8, class XRow, class Ready, class Put>
__device__ __forceinline__ void skinny_tile(const WeightRows& w, int64_t n0, int64_t K, uint8_t* shared, XRow x_row,
                                            Ready ready, Put put) {
  using Ring = SkinnyRing<kFormat, kTokens8>;
  using F = WeightFormat<kFormat>;
  constexpr int kDepth = Ring::kDepth, kOutputs = 8 * kTokens8 * kPartialStride;
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, q = lane % 4;
  const WarpSteps<Ring::kSteps> steps(static_cast<int>(K / Ring::kColumns));
  float* partial = reinterpret_cast<float*>(shared + steps.warps * Ring::kWarpBytes);
  const uint32_t ring =
      static_cast<uint32_t>(__cvta_generic_to_shared(shared)) + steps.warp * Ring::kWarpBytes + lane * 16;

  const uint8_t *row[2], *scale[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int64_t n = min(n0 + g + 8 * h, w.rows - 1);
    row[h] = w.data + n * w.row_bytes + 16 * q;
    if constexpr (F::kScaled) scale[h] = w.scale + n * w.scale_row_bytes + q * F::kColumns / kMxBlock;
  }
  // What will be copied first comes to L2 while the kernels in front end: L2 sees whatever they write.
#pragma unroll
  for (int h = 0; h < 2; ++h)
    if (q < 2 && 2 * q < steps.count)
      asm volatile("prefetch.global.L2 [%0];" ::"l"(row[h] - 16 * q + int64_t{steps.place(2 * q)} * 64));
  ready();
  const bf16* x[kTokens8];
#pragma unroll
  for (int t = 0; t < kTokens8; ++t) x[t] = x_row(8 * t + g) + q * F::kColumns;

  const auto copy_step = [&](int slot, int j) {
    if (j < steps.count) {
      const int at = steps.place(j);
      const uint32_t to = ring + slot * Ring::kStepBytes;
#pragma unroll
      for (int h = 0; h < 2; ++h) copy16_of_line(to + h * 512, row[h] + int64_t{at} * 64);
      if constexpr (Ring::kCopiesTokens) {
#pragma unroll
        for (int t = 0; t < kTokens8; ++t)
#pragma unroll
          for (int i = 0; i < Ring::kTokenWords; ++i)
            copy16_of_line(to + (2 + t * Ring::kTokenWords + i) * 512, x[t] + int64_t{at} * Ring::kColumns + 8 * i);
      }
    }
    copies_commit();
  };
  const auto load_scales = [&](int j, uint32_t(&to)[2]) {
    if constexpr (F::kScaled) {
      if (j >= steps.count) return;
#pragma unroll
      for (int h = 0; h < 2; ++h)
        to[h] = load_cached_byte(scale[h] + int64_t{steps.place(j)} * (Ring::kColumns / kMxBlock));
    }
  };
#pragma unroll
  for (int j = 0; j < kDepth - 1; ++j) copy_step(j, j);
  uint4 words[kTokens8][Ring::kTokenWords];  // of the next step
  const auto load_tokens = [&](int j) {
    if constexpr (!Ring::kCopiesTokens) {
      if (j >= steps.count) return;
#pragma unroll
      for (int t = 0; t < kTokens8; ++t)
#pragma unroll
        for (int i = 0; i < Ring::kTokenWords; ++i)
          words[t][i] = load_cached16(x[t] + int64_t{steps.place(j)} * Ring::kColumns + 8 * i);
    }
  };
  load_tokens(0);
  uint32_t factor[2] = {}, next_factor[2] = {};
  load_scales(0, next_factor);

  float sum[kTokens8][4] = {};
  int slot = 0;
  for (int j = 0; j < steps.count; ++j) {
    // Into the place of the step before, whose words have been multiplied.
    copy_step(slot == 0 ? kDepth - 1 : slot - 1, j + kDepth - 1);
    factor[0] = next_factor[0], factor[1] = next_factor[1];
    load_scales(j + 1, next_factor);
    copies_wait<kDepth - 1>();
    const uint32_t from = ring + slot * Ring::kStepBytes;
    slot = slot + 1 == kDepth ? 0 : slot + 1;
    const uint4 raw[2] = {load_shared16(from), load_shared16(from + 512)};
    uint4 now[kTokens8][Ring::kTokenWords];
#pragma unroll
    for (int t = 0; t < kTokens8; ++t)
#pragma unroll
      for (int i = 0; i < Ring::kTokenWords; ++i)
        now[t][i] = Ring::kCopiesTokens ? load_shared16(from + (2 + t * Ring::kTokenWords + i) * 512) : words[t][i];
    load_tokens(j + 1);
    const auto multiply = [&](auto slow) {
#pragma unroll
      for (int v = 0; v < Ring::kTokenWords; ++v) {
        uint32_t a[4], b[4], c[4];
        F::template unpack<slow()>(raw[0], v, factor[0], a);
        F::template unpack<slow()>(raw[1], v, factor[1], b);
#pragma unroll
        for (int t = 0; t < kTokens8; ++t) {
          match_order<kFormat>(now[t][v], c);
          mma_bf16(sum[t], a[0], b[0], a[1], b[1], c[0], c[1]);
          mma_bf16(sum[t], a[2], b[2], a[3], b[3], c[2], c[3]);
        }
      }
    };
    // One way for the warp, so that nothing diverges.
    if (F::kScaled && __any_sync(0xffffffffu, F::special(raw[0], factor[0]) || F::special(raw[1], factor[1])))
      multiply(std::true_type{});
    else
      multiply(std::false_type{});
    if ((j + 1) % Ring::kSteps != 0 && j + 1 != steps.count) continue;
    float* to = partial + steps.segment(j) * kOutputs;
#pragma unroll
    for (int t = 0; t < kTokens8; ++t)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        to[(8 * t + 2 * q + i % 2) * kPartialStride + g + i / 2 * 8] = sum[t][i];
        sum[t][i] = 0;
      }
  }
  __syncthreads();
  const int segments = static_cast<int>((K + kSegment - 1) / kSegment);
  for (int i = static_cast<int>(threadIdx.x); i < 8 * kTokens8 * kSkinnyRows; i += static_cast<int>(blockDim.x)) {
    const int t = i / kSkinnyRows, n = i % kSkinnyRows;
    const float* from = partial + t * kPartialStride + n;
    float total = from[0];
    for (int s = 1; s < segments; ++s) total += from[s * kOutputs];
    if (n0 + n < w.rows) put(t, n0 + n, total);
  }
}

}  // namespace kdelta::cuda
