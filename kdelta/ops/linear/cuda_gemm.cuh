// What linear's Hopper products have in common: which tile of weight rows and tokens, and which part of the columns, an
// item of work is, where its outputs go, and the kernel that adds split columns up.
#pragma once

#include "kdelta/ops/common/cuda/gemm_sm90.cuh"
#include "kdelta/ops/common/cuda/launch.cuh"
#include "kdelta/ops/linear/cuda_parts.cuh"
#include "kdelta/ops/linear/cuda_plan.h"

namespace kdelta {
namespace {

using namespace cuda;
static_assert(kGemmRows == kGemmTileRows && kGemmColumns == kGemmStepColumns);

// A tile of fp32 sums, [token][weight row].
struct SumSink {
  float* to;
  __device__ __forceinline__ void put(int rows, int tokens, float a, float b) const {
    *reinterpret_cast<float2*>(to + tokens * kGemmRows + rows) = make_float2(a, b);
  }
};

// Two outputs as one word: bf16 rows begin at 4 bytes, n is even.
template <class Out, bool kAddend>
struct OutSink {
  Out* to;
  const Out* addend;
  int64_t stride, addend_stride;
  int rows, tokens;  // left from the first output on

  __device__ __forceinline__ OutSink(const ProjectionOut& out, int64_t n, int64_t t, int rows_left, int tokens_left)
      : to(static_cast<Out*>(out.data) + t * out.stride + n),
        addend(static_cast<const Out*>(out.addend) + t * out.addend_stride + n),
        stride(out.stride),
        addend_stride(out.addend_stride),
        rows(rows_left),
        tokens(tokens_left) {}
  __device__ __forceinline__ void put(int row, int token, float a, float b) const {
    if (token >= tokens || row >= rows) return;
    Out* at = to + token * stride + row;
    const bool two = row + 1 < rows;
    if constexpr (kAddend) {
      const Out* add = addend + token * addend_stride + row;
      a += to_f32(add[0]);
      if (two) b += to_f32(add[1]);
    }
    if constexpr (sizeof(Out) == 2) {
      const uint32_t pair = pack_bf16(a, b);
      if (two)
        *reinterpret_cast<uint32_t*>(at) = pair;
      else
        *at = bf16{static_cast<uint16_t>(pair)};
    } else {
      at[0] = a;
      if (two) at[1] = b;
    }
  }
};

// Item i is a tile of weight rows, of kTokens tokens, and a part of the columns, in this order from the quickest.
struct Gemm {
  CUtensorMap token_boxes, weight_boxes[kMaxLinearParts];
  Parts parts;
  float* sums;  // [split][tile][tokens of a tile][kGemmRows] when columns are split
  int64_t T, K;
  int row_tiles, token_tiles, splits, steps, tile_tokens;

  struct Item {
    int first_step, steps, part, row, token, index;
  };
  __device__ __forceinline__ int items() const { return row_tiles * token_tiles * splits; }
  __device__ __forceinline__ Item item(int i) const {
    const int row_tile = i % row_tiles, rest = i / row_tiles, split = rest / token_tiles;
    const int first = steps * split / splits, last = steps * (split + 1) / splits, part = parts.of_tile(row_tile);
    return {
        first, last - first, part, (row_tile - parts.first_tile[part]) * kGemmRows, rest % token_tiles * tile_tokens,
        i};
  }
  __device__ __forceinline__ const CUtensorMap& token_map() const { return token_boxes; }
  __device__ __forceinline__ const CUtensorMap& weight_map(const Item& x) const { return weight_boxes[x.part]; }
  __device__ __forceinline__ int weight_row(const Item& x) const { return x.row; }
  __device__ __forceinline__ int token_row(const Item& x) const { return x.token; }
  __device__ __forceinline__ WeightRows weights(const Item& x) const {
    WeightRows w = parts.w[x.part];
    w.scale += x.row * w.scale_row_bytes, w.rows -= x.row;
    return w;
  }
  __device__ __forceinline__ int64_t columns() const { return K; }
  template <class F>
  __device__ __forceinline__ void with_sink(const Item& x, int row, int token, F&& f) const {
    if (splits > 1) return f(SumSink{sums + (int64_t{x.index} * tile_tokens + token) * kGemmRows + row});
    const ProjectionOut& out = parts.out[x.part];
    const int rows = static_cast<int>(parts.w[x.part].rows - x.row - row),
              tokens = static_cast<int>(T - x.token - token);
    if (out.bf16)
      return out.addend != nullptr ? f(OutSink<bf16, true>(out, x.row + row, x.token + token, rows, tokens))
                                   : f(OutSink<bf16, false>(out, x.row + row, x.token + token, rows, tokens));
    return out.addend != nullptr ? f(OutSink<float, true>(out, x.row + row, x.token + token, rows, tokens))
                                 : f(OutSink<float, false>(out, x.row + row, x.token + token, rows, tokens));
  }
};

template <int kTokens>
struct GemmOf : Gemm {
  static constexpr int kBoxTokens = kTokens;
};

// The sums of the splits, in order; two outputs a thread.
constexpr int kReduceThreads = 256;
__global__ void __launch_bounds__(kReduceThreads) add_splits(const __grid_constant__ Gemm g) {
  pdl_trigger();
  pdl_wait();
  const int tiles = g.row_tiles * g.token_tiles;
  const Gemm::Item x = g.item(static_cast<int>(blockIdx.x));
  const int64_t stride = int64_t{tiles} * g.tile_tokens * kGemmRows;
  const int i = static_cast<int>(blockIdx.y * kReduceThreads + threadIdx.x) * 2, token = i / kGemmRows,
            row = i % kGemmRows;
  if (x.token + token >= g.T || x.row + row >= g.parts.w[x.part].rows) return;
  const float* from = g.sums + int64_t{x.index} * g.tile_tokens * kGemmRows + i;
  float2 sum = *reinterpret_cast<const float2*>(from);
  for (int s = 1; s < g.splits; ++s) {
    const float2 next = *reinterpret_cast<const float2*>(from + s * stride);
    sum.x += next.x, sum.y += next.y;
  }
  g.parts.out[x.part].put(x.token + token, x.row + row, sum.x);
  if (x.row + row + 1 < g.parts.w[x.part].rows) g.parts.out[x.part].put(x.token + token, x.row + row + 1, sum.y);
}

inline void launch_add_splits(const Exec& ex, const Gemm& g) {
  if (g.splits == 1) return;
  const dim3 blocks(static_cast<unsigned>(g.row_tiles * g.token_tiles),
                    static_cast<unsigned>(g.tile_tokens * kGemmRows / (2 * kReduceThreads)));
  launch(ex, "linear", {.grid = blocks, .block = kReduceThreads, .pdl = true}, add_splits, g);
}

}  // namespace
}  // namespace kdelta
