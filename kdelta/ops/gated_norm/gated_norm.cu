// gated_norm on CUDA: the row of a head in the registers of a group of threads.
#include "kdelta/ops/common/cuda/launch.cuh"
#include "kdelta/ops/common/cuda/math.cuh"
#include "kdelta/ops/common/cuda/row.cuh"
#include "kdelta/ops/common/cuda/views.cuh"
#include "kdelta/ops/gated_norm/variants.h"

namespace kdelta {
namespace {

using namespace cuda;

// An activation whose type is known at run time: a branch that all threads take alike costs nothing beside the memory,
// and saves a kernel for every combination.
struct AnyHeadRows {
  void* data;
  int64_t stride, head_stride;
  bool f32;
};
template <class V>
AnyHeadRows any_head_rows(const V& v) {
  if (v.null()) return {};
  return {const_cast<void*>(static_cast<const void*>(v.data)), v.stride[0], v.stride[1], v.dtype == DType::f32};
}
template <bool kAligned>
__device__ __forceinline__ void load_any(const AnyHeadRows& v, int64_t t, int64_t h, int64_t d, int64_t n,
                                         float (&x)[kChunk]) {
  const int64_t at = t * v.stride + h * v.head_stride + d;
  if (v.f32)
    load_chunk<kAligned>(static_cast<const float*>(v.data) + at, n, x);
  else
    load_chunk<kAligned>(static_cast<const bf16*>(v.data) + at, n, x);
}
template <bool kAligned>
__device__ __forceinline__ void store_any(const AnyHeadRows& v, int64_t t, int64_t h, int64_t d, int64_t n,
                                          const float (&x)[kChunk]) {
  const int64_t at = t * v.stride + h * v.head_stride + d;
  if (v.f32)
    store_chunk<kAligned>(static_cast<float*>(v.data) + at, n, x);
  else
    store_chunk<kAligned>(static_cast<bf16*>(v.data) + at, n, x);
}

struct Params {
  AnyHeadRows x, gate, residual, sum_out, out;
  const float *weight, *bias;
  const int32_t* live;
  int64_t T, H, D;
  float eps;
  bool silu;
};

template <int kGroup, int kChunks, bool kAligned, bool kExact>
__global__ void __launch_bounds__(RowGroup<kGroup>::kThreads) gated_norm_rows(const __grid_constant__ Params p) {
  using Group = RowGroup<kGroup>;
  __shared__ float shared[Group::kSharedFloats];
  pdl_trigger();
  pdl_wait();
  const int64_t row = Group::row(), t = row / p.H, h = row - t * p.H;
  const bool mine = t < p.T, alive = mine && (p.live == nullptr || t < *p.live);
  float s[kChunks][kChunk], g[kChunks][kChunk], sum[1] = {0};
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    const int64_t d = (c * kGroup + Group::lane()) * kChunk, n = p.D - d;
#pragma unroll
    for (int i = 0; i < kChunk; ++i) s[c][i] = g[c][i] = 0;
    if (!alive || n <= 0) continue;
    load_any<kAligned>(p.x, t, h, d, n, s[c]);
    load_any<kAligned>(p.gate, t, h, d, n, g[c]);
    if (p.residual.data != nullptr) {
      float r[kChunk];
      load_any<kAligned>(p.residual, t, h, d, n, r);
#pragma unroll
      for (int i = 0; i < kChunk; ++i) s[c][i] += r[i];
    }
#pragma unroll
    for (int i = 0; i < kChunk; ++i) sum[0] = fmaf(s[c][i], s[c][i], sum[0]);
  }
  Group::sums(sum, shared);
  const float scale = rsqrtf(sum[0] / static_cast<float>(p.D) + p.eps);
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    const int64_t d = (c * kGroup + Group::lane()) * kChunk, n = p.D - d;
    if (!mine || n <= 0) continue;
    if (p.sum_out.data != nullptr) store_any<kAligned>(p.sum_out, t, h, d, n, s[c]);
    if (alive) {
      float w[kChunk], b[kChunk];
#pragma unroll
      for (int i = 0; i < kChunk; ++i) w[i] = 1, b[i] = 0;
      if (p.weight != nullptr) load_chunk<kAligned>(p.weight + d, n, w);
      if (p.bias != nullptr) load_chunk<kAligned>(p.bias + d, n, b);
#pragma unroll
      for (int i = 0; i < kChunk; ++i) {
        const float y = fmaf(s[c][i] * scale, w[i], b[i]),
                    sig = kExact ? sigmoid<true>(g[c][i]) : sigmoid_flushed(g[c][i]);
        s[c][i] = y * (p.silu ? g[c][i] * sig : sig);
      }
    }
    store_any<kAligned>(p.out, t, h, d, n, s[c]);
  }
}

}  // namespace

void gated_norm_cuda(const Exec& ex, const GatedNormArgs& a, const GatedNormDesc& d, void*) {
  const bool aligned =
      d.width % kChunk == 0 && all_aligned16(a.x, a.gate, a.out, a.residual, a.sum_out, a.weight, a.bias);
  const Params p{.x = any_head_rows(a.x),
                 .gate = any_head_rows(a.gate),
                 .residual = any_head_rows(a.residual),
                 .sum_out = any_head_rows(a.sum_out),
                 .out = any_head_rows(a.out),
                 .weight = a.weight.data,
                 .bias = a.bias.data,
                 .live = a.live.data,
                 .T = d.rows,
                 .H = d.heads,
                 .D = d.width,
                 .eps = a.eps,
                 .silu = a.activation == GateActivation::silu};
  dispatch_bool(a.out.dtype == DType::f32, [&](auto exact) {
    dispatch_bool(aligned, [&](auto fast) {
      dispatch_row(d.width, [&](auto group, auto chunks) {
        using Group = RowGroup<group()>;
        const unsigned grid = grid_of(d.rows * d.heads, Group::kRows);
        launch(ex, "gated_norm", {.grid = grid, .block = Group::kThreads, .pdl = pdl_pays(d.target, grid)},
               gated_norm_rows<group(), chunks(), fast(), exact()>, p);
      });
    });
  });
}

}  // namespace kdelta
