// grouped_linear on any CUDA device and for every dtype and alignment: tiles of 64 pairs by 64 outputs, fp32
// throughout, each sum in the order of K.
#include "kdelta/ops/common/cuda/launch.cuh"
#include "kdelta/ops/common/cuda/mx_codes.cuh"
#include "kdelta/ops/common/cuda/views.cuh"
#include "kdelta/ops/grouped_linear/cuda_routing.cuh"

namespace kdelta {
namespace {

using namespace cuda;
using namespace grouped;
constexpr int kThreads = 256, kPairs = 64, kOutputs = 64, kStep = 16, kEach = 4;
constexpr int kPitch = 68;  // floats: rows of a panel begin in different banks

struct Params {
  Experts experts;
  Routing routing;
  const void* x;
  void* out;
  int64_t x_stride, out_stride, K, N;
  bool x_f32, out_f32;
};

// A number at any address: files align no tensor.
template <class T>
__device__ __forceinline__ float number_at(const uint8_t* p) {
  uint32_t bits = 0;
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(T)); ++i) bits |= uint32_t{p[i]} << (8 * i);
  return __uint_as_float(sizeof(T) == 4 ? bits : bits << 16);
}

// Elements [k, k + kEach) of a weight row; zeros from K on. k is a multiple of kEach.
template <DType kFormat>
__device__ __forceinline__ void load_weights(const Expert& w, int64_t n, int64_t k, int64_t K, float (&v)[kEach]) {
  const uint8_t* row = w.data + n * w.row_bytes;
  if constexpr (kFormat == DType::f32 || kFormat == DType::bf16) {
    using T = std::conditional_t<kFormat == DType::f32, float, bf16>;
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      v[i] = k + i < K ? number_at<T>(row + (k + i) * static_cast<int64_t>(sizeof(T))) : 0.0f;
  } else {
    const bool inside = k < K;  // K is a multiple of a block
    const uint8_t s = inside ? w.scale[n * w.scale_row_bytes + k / kMxBlock] : uint8_t{127};
    const float factor = s == 255 ? NAN : power_of_two(s - 127);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      uint32_t code = 0;
      if (inside) code = kFormat == DType::f4_e2m1 ? row[(k + i) / 2] >> (4 * (i % 2)) & 15u : uint32_t{row[k + i]};
      v[i] = value_of<kFormat>(code) * factor;
    }
  }
}

__device__ __forceinline__ void load_inputs(const Params& p, int64_t row, int64_t k, float (&v)[kEach]) {
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int64_t at = row * p.x_stride + k + i;
    const bool inside = row >= 0 && k + i < p.K;
    v[i] = !inside ? 0.0f : p.x_f32 ? static_cast<const float*>(p.x)[at] : to_f32(static_cast<const bf16*>(p.x)[at]);
  }
}

template <DType kFormat>
__global__ void __launch_bounds__(kThreads) grouped_products(const __grid_constant__ Params p) {
  __shared__ __align__(16) float inputs[kStep][kPitch], weights[kStep][kPitch];
  __shared__ bool served[kPairs];
  pdl_trigger();
  pdl_wait();
  const Tile tile = find_tile<kPairs>(p.routing, blockIdx.x);
  if (tile.expert < 0) return;
  const int thread = static_cast<int>(threadIdx.x), line = thread / 4, quad = thread % 4 * kEach;
  const int64_t first_output = int64_t{blockIdx.y} * kOutputs, n = first_output + line;
  float sum[kEach][kEach] = {};  // [pair][output]
  const int pair = thread / 16 * kEach, output = thread % 16 * kEach;
  const bool has_expert = tile.expert < p.routing.E;
  if (has_expert) {
    const Expert w = p.experts.at(tile.expert);
    const int64_t row = line < tile.count ? row_of(p.routing, tile.first + line) : -1;
    if (quad == 0) served[line] = row >= 0;
    for (int64_t k = 0; k < p.K; k += kStep) {
      float x[kEach], y[kEach] = {};
      load_inputs(p, row, k + quad, x);
      if (n < p.N) load_weights<kFormat>(w, n, k + quad, p.K, y);
      __syncthreads();
#pragma unroll
      for (int i = 0; i < kEach; ++i) inputs[quad + i][line] = x[i], weights[quad + i][line] = y[i];
      __syncthreads();
#pragma unroll
      for (int i = 0; i < kStep; ++i) {
        const float4 a = *reinterpret_cast<const float4*>(&inputs[i][pair]);
        const float4 b = *reinterpret_cast<const float4*>(&weights[i][output]);
        const float in[kEach] = {a.x, a.y, a.z, a.w}, by[kEach] = {b.x, b.y, b.z, b.w};
#pragma unroll
        for (int m = 0; m < kEach; ++m)
#pragma unroll
          for (int o = 0; o < kEach; ++o) sum[m][o] = fmaf(in[m], by[o], sum[m][o]);
      }
    }
  }
#pragma unroll
  for (int m = 0; m < kEach; ++m) {
    if (pair + m >= tile.count) continue;
    const int64_t at = (tile.first + pair + m) * p.out_stride;
#pragma unroll
    for (int o = 0; o < kEach; ++o) {
      const int64_t column = first_output + output + o;
      if (column >= p.N) continue;
      const float v = has_expert && served[pair + m] ? sum[m][o] : 0.0f;
      if (p.out_f32)
        static_cast<float*>(p.out)[at + column] = v;
      else
        static_cast<bf16*>(p.out)[at + column] = from_f32<bf16>(v);
    }
  }
}

}  // namespace

void grouped_linear_cuda(const Exec& ex, const GroupedLinearArgs& a, const GroupedLinearDesc& d, void* scratch) {
  if (d.P == 0 || d.N == 0) return;
  const Params p{.experts = experts_of(ex, a.w, scratch),
                 .routing = routing_of(ex, a, d, kPairs),
                 .x = a.x.data,
                 .out = a.out.data,
                 .x_stride = a.x.stride[0],
                 .out_stride = a.out.stride[0],
                 .K = d.K,
                 .N = d.N,
                 .x_f32 = d.x == DType::f32,
                 .out_f32 = d.out == DType::f32};
  const dim3 grid(static_cast<unsigned>(slots_of(d.P, d.E, kPairs).count), grid_of(d.N, kOutputs));
  const Launch l{.grid = grid, .block = kThreads, .pdl = pdl_pays(d.target, int64_t{grid.x} * grid.y)};
  if (d.w == DType::f32) return launch(ex, "grouped_linear", l, grouped_products<DType::f32>, p);
  if (d.w == DType::bf16) return launch(ex, "grouped_linear", l, grouped_products<DType::bf16>, p);
  dispatch_format(d.w, [&](auto format) { launch(ex, "grouped_linear", l, grouped_products<format()>, p); });
}

}  // namespace kdelta
