// Products of E4M3 codes on Hopper's tensor cores, with a scale for every 32 columns of either side: a product covers
// one block of 32 columns, and its sums are scaled and added in fp32 registers. Tiles, warps and ring are those of
// common/cuda/gemm_sm90.cuh; a stage is 128 columns.
//
// A Work is one of gemm_sm90's, its steps 128 columns, and
//   const uint8_t* record(item, int step)   the scales of the tile's tokens, as Fp8Shape says
#pragma once

#include "kdelta/ops/common/cuda/gemm_sm90.cuh"

namespace kdelta::cuda {

inline constexpr int kFp8Columns = 128, kFp8Blocks = kFp8Columns / kMxBlock;

// The scales of a tile of tokens and a step: [block][token] in fp32, tokens in the order of fp8_place(), then a word
// that says whether one of them is not plain.
constexpr int fp8_record_bytes(int tokens) {
  return tokens * kFp8Blocks * 4 + 16;
}
// Four neighbours are those of a lane's sums.
__host__ __device__ constexpr int fp8_place(int token) {
  return token / 16 * 16 + token % 8 / 2 * 4 + token / 8 % 2 * 2 + token % 2;
}
// Plain scales: the product of any two is a normal number.
inline constexpr uint32_t kLeastPlain = 64, kMostPlain = 190;

template <int kTokens_>
struct Fp8Shape {
  static constexpr int kTokens = kTokens_, kWeightBytes = kGemmRows * kFp8Columns, kTokenBytes = kTokens * kFp8Columns;
  static constexpr int kRecordBytes = fp8_record_bytes(kTokens), kRecordAt = kWeightBytes + kTokenBytes;
  static constexpr int kStageBytes = kRecordAt + (kRecordBytes + 1023) / 1024 * 1024;
  static constexpr int kStages = 216 * 1024 / kStageBytes < 8 ? 216 * 1024 / kStageBytes : 8;
  static constexpr int kSharedBytes = kStages * kStageBytes + 1024;
};

// A lane's scales of its two weight rows: four bytes of a step in a word.
struct Fp8WeightScales {
  const uint8_t* row[2];
  int blocks;
  uint32_t now[2], next[2][kFp8Blocks];

  __device__ __forceinline__ void begin(const WeightRows& w, int64_t columns, int tile_row) {
    blocks = static_cast<int>(columns / kMxBlock);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      row[h] = w.scale + min(int64_t{tile_row + 8 * h}, w.rows - 1) * w.scale_row_bytes;
      asm("" : "+l"(row[h]));
    }
  }
  __device__ __forceinline__ void load(int step) {
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int b = 0; b < kFp8Blocks; ++b) {
        const int at = step * kFp8Blocks + b;
        next[h][b] = at < blocks ? load_cached_byte(row[h] + at) : 127;
      }
  }
  // Whether all of them are plain.
  __device__ __forceinline__ bool take() {
    bool plain = true;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      now[h] = next[h][0] | next[h][1] << 8 | next[h][2] << 16 | next[h][3] << 24;
#pragma unroll
      for (int b = 0; b < kFp8Blocks; ++b) plain = plain && next[h][b] - kLeastPlain <= kMostPlain - kLeastPlain;
    }
    return plain;
  }
  __device__ __forceinline__ uint32_t of(int h, int block) const {
    return now[h] >> (8 * block) & 255;
  }
};

__device__ __forceinline__ float4 load_shared_floats(uint32_t address) {
  const uint4 v = load_shared16(address);
  return make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w));
}

// 2^(code - 127) as two factors of about the same size, which no sum of four such exponents overflows; NaN of 255.
__device__ __forceinline__ float2 scale_factors(int code) {
  const int first = (code - 127) >> 1, second = code - 127 - first;
  return code == 255 ? make_float2(NAN, 1) : make_float2(power_of_two(first), power_of_two(second));
}
__device__ __forceinline__ int scale_code(float scale) {
  const uint32_t bits = __float_as_uint(scale);
  return bits == 0x00400000u ? 0 : static_cast<int>(bits >> 23 & 255);
}

// f(index of a sum, weight row 0 or 1, its token among the four of a load) for the sums of 16 tokens from 16 i on.
template <class F>
__device__ __forceinline__ void each_of_16(int i, F&& f) {
#pragma unroll
  for (int j = 0; j < 2; ++j)
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int c = 0; c < 2; ++c) f(8 * i + 4 * j + 2 * h + c, h, 2 * j + c);
}

// The products of a lane's scales.
template <int kTokens>
__device__ __forceinline__ void plain_factors(float (&factor)[kTokens / 2], uint32_t record, uint32_t first,
                                              uint32_t second) {
  const float row[2] = {__uint_as_float(first << 23), __uint_as_float(second << 23)};
#pragma unroll
  for (int i = 0; i < kTokens / 16; ++i) {
    const float4 x = load_shared_floats(record + i * 64);
    const float column[4] = {x.x, x.y, x.z, x.w};
    each_of_16(i, [&](int at, int h, int c) { factor[at] = row[h] * column[c]; });
  }
}
// sum += part, scaled, of any scales.
template <int kTokens>
__device__ __forceinline__ void add_any(float (&sum)[kTokens / 2], const float (&part)[kTokens / 2], uint32_t record,
                                        uint32_t first, uint32_t second) {
  const float2 row[2] = {scale_factors(static_cast<int>(first)), scale_factors(static_cast<int>(second))};
#pragma unroll
  for (int i = 0; i < kTokens / 16; ++i) {
    const float4 x = load_shared_floats(record + i * 64);
    const float2 column[4] = {scale_factors(scale_code(x.x)), scale_factors(scale_code(x.y)),
                              scale_factors(scale_code(x.z)), scale_factors(scale_code(x.w))};
    each_of_16(i, [&](int at, int h, int c) {
      sum[at] = __fmaf_rn(part[at] * (row[h].x * column[c].x), row[h].y * column[c].y, sum[at]);
    });
  }
}

__device__ __forceinline__ bool any_of_group(int group, bool mine) {
  uint32_t any;
  asm volatile("{.reg .pred p, q; setp.ne.b32 q, %1, 0; barrier.cta.red.or.pred p, %2, 128, q; selp.b32 %0, 1, 0, p;}"
               : "=r"(any)
               : "r"(static_cast<int>(mine)), "r"(1 + group)
               : "memory");
  return any != 0;
}

// One item of a warpgroup: 64 weight rows x kTokens tokens. While it scales and adds, the other one multiplies.
template <int kTokens, class Work, class Item>
__device__ __forceinline__ void multiply_fp8_item(const Work& work, const Item& item, uint32_t ring, uint64_t* full,
                                                  uint64_t* empty, RingPlace<Fp8Shape<kTokens>::kStages>& at) {
  using Shape = Fp8Shape<kTokens>;
  const int group = static_cast<int>(threadIdx.x) / 128, lane = static_cast<int>(threadIdx.x) % 32,
            warp = static_cast<int>(threadIdx.x) / 32 % 4, g = lane / 4, q = lane % 4, row = group * 64 + warp * 16;
  Fp8WeightScales scales;
  scales.begin(work.weights(item), work.columns(), row + g);
  scales.load(item.first_step);
  float sum[kTokens / 2] = {}, part[kTokens / 2] = {};
  for (int step = 0; step < item.steps; ++step) {
    barrier_wait(full + at.stage, at.phase);
    const uint32_t stage = ring + at.stage * Shape::kStageBytes, record = stage + Shape::kRecordAt + q * 16;
    const uint64_t a = wgmma_tile(stage + group * (64 * 128)), b = wgmma_tile(stage + Shape::kWeightBytes);
    const bool plain = scales.take() && load_shared_word(stage + Shape::kRecordAt + Shape::kRecordBytes - 16) == 0;
    scales.load(item.first_step + step + 1);
    const auto issue = [&](int block) {
      wgmma_fence();
      WgmmaE4m3<kTokens>::shared(part, a + 2 * block, b + 2 * block);
      wgmma_commit();
    };
    const auto wait = [&] {
      wgmma_wait<0>();
      wgmma_done(part);
    };
    if (any_of_group(group, !plain)) {  // one way for the four warps that multiply together
#pragma unroll 1
      for (int block = 0; block < kFp8Blocks; ++block) {
        issue(block);
        wait();
        add_any<kTokens>(sum, part, record + block * (kTokens * 4), scales.of(0, block), scales.of(1, block));
      }
    } else {
#pragma unroll
      for (int block = 0; block < kFp8Blocks; ++block) {
        float factor[kTokens / 2];
        issue(block);
        plain_factors<kTokens>(factor, record + block * (kTokens * 4), scales.of(0, block), scales.of(1, block));
        wait();
#pragma unroll
        for (int i = 0; i < kTokens / 2; ++i) sum[i] = __fmaf_rn(part[i], factor[i], sum[i]);
      }
    }
    __syncwarp();  // every lane has read the record
    if (lane == 0) barrier_arrive(empty + at.stage);
    at.advance();
  }
  put_sums<kTokens>(work, item, row, sum);
}

template <int kTokens, class Work>
__global__ void __launch_bounds__(kGemmThreads, 1) fp8_sm90(const __grid_constant__ Work work) {
#if __CUDA_ARCH_FEAT_SM90_ALL
  using Shape = Fp8Shape<kTokens>;
  constexpr int kStages = Shape::kStages;
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
      for (int step = item.first_step; step < item.first_step + item.steps; ++step) {
        barrier_wait(empty + at.stage, at.phase ^ 1);
        uint8_t* stage = ring + at.stage * Shape::kStageBytes;
        barrier_expect(full + at.stage, static_cast<uint32_t>(Shape::kRecordAt + Shape::kRecordBytes));
        tensor_load(stage, work.weight_map(item), step * kFp8Columns, work.weight_row(item), full + at.stage);
        tensor_load(stage + Shape::kWeightBytes, work.token_map(), step * kFp8Columns, work.token_row(item),
                    full + at.stage);
        bulk_load(stage + Shape::kRecordAt, work.record(item, step), Shape::kRecordBytes, full + at.stage);
        at.advance();
      }
    }
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
  pdl_wait();  // outputs may still be read in front of this kernel
  const uint32_t address = shared_address(ring);
  for (int i = static_cast<int>(blockIdx.x); i < work.items(); i += static_cast<int>(gridDim.x))
    multiply_fp8_item<kTokens>(work, work.item(i), address, full, empty, at);
#endif
}

}  // namespace kdelta::cuda
