// The matrix product of Hopper for linear and grouped_linear: tiles of 128 weight rows x kTokens tokens, weights as the
// wgmma operand A, tokens as B. A warp copies tiles into a ring of stages; two warpgroups multiply, 64 weight rows
// each. bf16 weights are read from shared memory; codes are unpacked into registers, exactly (weight_fragments.cuh).
//
// A Work says what is to be done. It is a kernel parameter:
//   int items()                          of the whole grid; block b does b, b + gridDim, ...
//   Item item(int i)                     anything that has first_step and steps, of 64 columns, at least one
//   const CUtensorMap& weight_map(item)  boxes of kGemmRows rows of GemmShape::kRowBytes
//   const CUtensorMap& token_map()       boxes of kBoxTokens rows of 128 bytes
//   static constexpr int kBoxTokens      kTokens, or less where tiles may have fewer tokens: a tile copies and
//   int tokens(item)                     multiplies about as many as it has, at least one
//   int weight_row(item), token_row(item)   of the tile, in these maps
//   WeightRows weights(item), int64_t columns()   of codes: rows from the tile's first on; columns of a row
//   void with_sink(item, row, token, f)  f(sink): where a lane's outputs go, the first at `row` and `token` of the
//   tile.
//                                        sink.put(rows, tokens, a, b) gets those of the weight rows `rows` and
//                                        `rows` + 1 on and the token `tokens` on. The tile may hang over either end.
// A sink's code is repeated for every output, so it is small: few instructions, many times, wait for instructions.
#pragma once

#include "kdelta/ops/common/cuda/tensor_map.cuh"
#include "kdelta/ops/common/cuda/weight_fragments.cuh"
#include "kdelta/ops/common/cuda/wgmma.cuh"

namespace kdelta::cuda {

inline constexpr int kGemmRows = 128, kGemmColumns = 64, kGemmThreads = 384;

template <DType kFormat, int kTokens_>
struct GemmShape {
  static constexpr int kRowBytes = kFormat == DType::bf16 ? 128 : kFormat == DType::f4_e2m1 ? 32 : 64;
  static constexpr int kTokens = kTokens_;
  static constexpr int kWeightBytes = kGemmRows * kRowBytes, kTokenBytes = kTokens * 128;
  static constexpr int kStageBytes = kWeightBytes + kTokenBytes;
  static constexpr int kStages = 216 * 1024 / kStageBytes < 8 ? 216 * 1024 / kStageBytes : 8;
  static constexpr int kSharedBytes = kStages * kStageBytes + 1024;  // the ring begins at a multiple of 1,024
};

template <int kStages>
struct RingPlace {
  int stage = 0;
  uint32_t phase = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == kStages) stage = 0, phase ^= 1;
  }
};

// A lane's codes of rows g and g + 8 of its warp's 16, as operand A: columns 16 j + 2q, + 1, + 8, + 9.
template <DType kFormat>
struct CodeOperand {
  using F = WeightFormat<kFormat>;
  static constexpr int kBlocks = kGemmColumns / kMxBlock;

  const uint8_t* scale_row[2];
  uint32_t scale[2][kBlocks];  // of the next stage
  int row, blocks;             // of the tile; of a matrix row

  __device__ __forceinline__ void begin(const WeightRows& w, int64_t columns, int tile_row) {
    row = tile_row, blocks = static_cast<int>(columns / kMxBlock);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      scale_row[h] = w.scale + min(int64_t{tile_row + 8 * h}, w.rows - 1) * w.scale_row_bytes;
      asm("" : "+l"(scale_row[h]));  // kept: worked out anew for every load it is an eighth of the loop
    }
  }
  __device__ __forceinline__ void load_scales(int step) {
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        const int at = step * kBlocks + b;
        scale[h][b] = at < blocks ? load_cached_byte(scale_row[h] + at) : 0;
      }
  }
  __device__ __forceinline__ void unpack(uint32_t tile, int q, uint32_t (&a)[4][4]) const {
    // FP4: word c holds the bytes of columns 32 c + 2q, + 8, + 16, + 24. FP8: word j the codes of 16 j + 2q, + 1, + 8,
    // + 9.
    constexpr int kWords = kFormat == DType::f4_e2m1 ? 2 : 4;
    uint32_t word[2][kWords];
    bool special = false;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int r = row + 8 * h;
#pragma unroll
      for (int c = 0; c < kWords; ++c) {
        if constexpr (kFormat == DType::f4_e2m1) {
          const uint4 v = load_shared16(tile + r * 32 + ((c ^ (r >> 2 & 1)) * 16));
          const uint32_t low = __byte_perm(v.x, v.y, q | (q + 4) << 4), high = __byte_perm(v.z, v.w, q | (q + 4) << 4);
          word[h][c] = __byte_perm(low, high, 0x5410);
        } else {
          const uint4 v = load_shared16(tile + r * 64 + ((c ^ (r >> 1 & 3)) * 16));
          word[h][c] = __byte_perm(q < 2 ? v.x : v.y, q < 2 ? v.z : v.w, q % 2 == 0 ? 0x5410 : 0x7632);
          special = special || F::special_bits(word[h][c]) != 0;
        }
      }
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) special = special || scale[h][b] > F::kMostScale;
    }
    // One way for the warp, so that nothing diverges.
    if (__any_sync(0xffffffffu, special))
      spread<true>(word, a);
    else
      spread<false>(word, a);
  }
  template <bool kSlow, int kWords>
  __device__ __forceinline__ void spread(const uint32_t (&word)[2][kWords], uint32_t (&a)[4][4]) const {
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if constexpr (kFormat == DType::f4_e2m1) {
            const uint32_t two = word[h][j / 2] >> (j % 2 * 16 + i * 8) & 255;
            a[j][h + 2 * i] = F::template neighbours<kSlow>(two, scale[h][j / 2]);
          } else {
            a[j][h + 2 * i] = F::template pair<kSlow>(word[h][j], i, scale[h][j / 2]);
          }
        }
  }
};

__device__ __forceinline__ uint32_t transpose8x8(uint32_t pair) {
  uint32_t out;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(pair));
  return out;
}
// Transposes 8 x 8 numbers over a warp, a half of their bits at a time: from (row g, columns 2q and 2q + 1) in a and b
// to (rows 2q and 2q + 1, column g).
__device__ __forceinline__ void transpose8x8(float& a, float& b) {
  const uint32_t x = __float_as_uint(a), y = __float_as_uint(b);
  const uint32_t low = transpose8x8(__byte_perm(x, y, 0x5410)), high = transpose8x8(__byte_perm(x, y, 0x7632));
  a = __uint_as_float(__byte_perm(low, high, 0x5410)), b = __uint_as_float(__byte_perm(low, high, 0x7632));
}

// A warp's sums, of 16 weight rows from `row` of the tile on, to where they go.
template <int kColumns, class Work, class Item>
__device__ __forceinline__ void put_sums(const Work& work, const Item& item, int row, float (&sum)[kColumns / 2]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, q = lane % 4;
  work.with_sink(item, row + 2 * q, g, [&](const auto& sink) {
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float a = sum[4 * j + 2 * h], b = sum[4 * j + 2 * h + 1];
        transpose8x8(a, b);
        sink.put(8 * h, 8 * j, a, b);
      }
  });
}

// One item of a warpgroup: 64 weight rows x kColumns tokens.
template <DType kFormat, int kColumns, class Shape, class Work, class Item>
__device__ __forceinline__ void multiply_item(const Work& work, const Item& item, uint32_t ring, uint64_t* full,
                                              uint64_t* empty, RingPlace<Shape::kStages>& at) {
  const int group = static_cast<int>(threadIdx.x) / 128, lane = static_cast<int>(threadIdx.x) % 32,
            warp = static_cast<int>(threadIdx.x) / 32 % 4, g = lane / 4, q = lane % 4,
            tile_row = group * 64 + warp * 16 + g;
  // The first product of an item overwrites. Where a kernel has several widths, ptxas would serialise the products of
  // codes for it ("insufficient register resources"): there sums begin as zeros.
  constexpr bool kZeros = Work::kBoxTokens < Shape::kTokens;
  float sum[kColumns / 2];
#pragma unroll
  for (int i = 0; kZeros && i < kColumns / 2; ++i) sum[i] = 0;
  int previous = -1;
  // Behind the products of a stage: those of the one before are done, and its memory is free.
  const auto behind = [&] {
    wgmma_wait<1>();
    if (previous >= 0 && lane == 0) barrier_arrive(empty + previous);
    previous = at.stage;
    at.advance();
  };
  if constexpr (kFormat == DType::bf16) {
    const auto multiply = [&](bool first) {
      barrier_wait(full + at.stage, at.phase);
      const uint32_t stage = ring + at.stage * Shape::kStageBytes;
      const uint64_t a = wgmma_tile(stage + group * (64 * 128)), b = wgmma_tile(stage + Shape::kWeightBytes);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < 4; ++k) Wgmma<kColumns>::shared(sum, a + 2 * k, b + 2 * k, !first || k > 0);
      wgmma_commit();
    };
    multiply(true);
    previous = at.stage;
    at.advance();
    for (int step = 1; step < item.steps; ++step) {
      multiply(false);
      behind();
    }
  } else {
    CodeOperand<kFormat> codes;
    codes.begin(work.weights(item), work.columns(), tile_row);
    codes.load_scales(item.first_step);
    // The registers of a product in flight must stay: two sets in turn.
    const auto multiply = [&](uint32_t(&a)[4][4], int step) {
      barrier_wait(full + at.stage, at.phase);
      const uint32_t stage = ring + at.stage * Shape::kStageBytes;
      const uint64_t b = wgmma_tile(stage + Shape::kWeightBytes);
      codes.unpack(stage, q, a);
      codes.load_scales(item.first_step + step + 1);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < 4; ++k) Wgmma<kColumns>::registers(sum, a[k], b + 2 * k, kZeros || step > 0 || k > 0);
      wgmma_commit();
      behind();
    };
    uint32_t even[4][4], odd[4][4];
    for (int step = 0; step < item.steps; step += 2) {
      multiply(even, step);
      if (step + 1 < item.steps) multiply(odd, step + 1);
    }
  }
  wgmma_wait<0>();
  wgmma_done(sum);
  if (lane == 0) barrier_arrive(empty + previous);
  put_sums<kColumns>(work, item, tile_row - g, sum);
}

template <DType kFormat, int kTokens, class Work>
__global__ void __launch_bounds__(kGemmThreads, 1) gemm_sm90(const __grid_constant__ Work work) {
#if __CUDA_ARCH_FEAT_SM90_ALL
  using Shape = GemmShape<kFormat, kTokens>;
  constexpr int kStages = Shape::kStages, kBoxTokens = Work::kBoxTokens;
  extern __shared__ uint8_t dynamic[];
  __shared__ uint64_t full[kStages], empty[kStages];
  uint8_t* const ring = dynamic + (1024 - shared_address(dynamic) % 1024) % 1024;
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) barrier_init(full + s, 1), barrier_init(empty + s, 8);
    fence_barrier_init();
  }
  __syncthreads();
  pdl_trigger();
  RingPlace<kStages> at;
  if (threadIdx.x >= 256) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x != 256) return;
    pdl_wait();
    for (int i = static_cast<int>(blockIdx.x); i < work.items(); i += static_cast<int>(gridDim.x)) {
      const auto item = work.item(i);
      int boxes = 1;
      if constexpr (kBoxTokens < kTokens) boxes = (work.tokens(item) + kBoxTokens - 1) / kBoxTokens;
      for (int step = item.first_step; step < item.first_step + item.steps; ++step) {
        barrier_wait(empty + at.stage, at.phase ^ 1);
        uint8_t* stage = ring + at.stage * Shape::kStageBytes;
        barrier_expect(full + at.stage, static_cast<uint32_t>(Shape::kWeightBytes + boxes * kBoxTokens * 128));
        tensor_load(stage, work.weight_map(item), step * (Shape::kRowBytes / (kFormat == DType::bf16 ? 2 : 1)),
                    work.weight_row(item), full + at.stage);
        for (int b = 0; b < boxes; ++b)
          tensor_load(stage + Shape::kWeightBytes + b * kBoxTokens * 128, work.token_map(), step * kGemmColumns,
                      work.token_row(item) + b * kBoxTokens, full + at.stage);
        at.advance();
      }
    }
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
  pdl_wait();  // outputs may still be read in front of this kernel
  const uint32_t address = shared_address(ring);
  for (int i = static_cast<int>(blockIdx.x); i < work.items(); i += static_cast<int>(gridDim.x)) {
    const auto item = work.item(i);
    if constexpr (kBoxTokens == kTokens) {
      multiply_item<kFormat, kTokens, Shape>(work, item, address, full, empty, at);
    } else {
      const int tokens = work.tokens(item);
      if (tokens <= 32)
        multiply_item<kFormat, 32, Shape>(work, item, address, full, empty, at);
      else if (tokens <= 64)
        multiply_item<kFormat, 64, Shape>(work, item, address, full, empty, at);
      else if (kTokens == 128 || tokens <= 128)
        multiply_item<kFormat, 128, Shape>(work, item, address, full, empty, at);
      else if constexpr (kTokens == 256)
        multiply_item<kFormat, 256, Shape>(work, item, address, full, empty, at);
    }
  }
#endif
}

}  // namespace kdelta::cuda
