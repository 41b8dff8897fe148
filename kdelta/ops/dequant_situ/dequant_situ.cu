// dequant_situ on CUDA: a block per row, the activated row in its registers until the largest magnitude is known.
#include "kdelta/ops/common/alignment.h"
#include "kdelta/ops/common/cuda/launch.cuh"
#include "kdelta/ops/common/cuda/math.cuh"
#include "kdelta/ops/common/cuda/row.cuh"
#include "kdelta/ops/common/cuda/views.cuh"
#include "kdelta/ops/dequant_situ/variants.h"

namespace kdelta {
namespace {

using namespace cuda;
constexpr int kThreads = 256, kWarps = kThreads / 32;

// One value for each column, one for all, or a row of them for each expert.
struct ColumnParameter {
  const float* data;
  int64_t expert_stride, stride;  // stride 0: one for all
  __device__ __forceinline__ float at(int64_t expert, int64_t c) const {
    return data[expert * expert_stride + c * stride];
  }
};
ColumnParameter column_parameter(const View<const float>& v) {
  if (v.null()) return {};
  if (v.shape.rank == 2) return {v.data, v.stride[0], v.stride[1]};
  return {v.data, 0, v.dim(0) == 1 ? 0 : v.stride[0]};
}

struct Params {
  ColumnParameter weight, bias, quant_scale, quant_offset;
  const float* activation;
  int64_t activation_stride;
  const int64_t* counts;
  int64_t counts_stride, experts;
  Rows<int8_t> y;
  float* scale;
  int64_t scale_stride;
  int64_t T, N;
  float beta, linear_beta;
  bool activate_left;
  uint32_t* faults;
};

// The expert that owns row t, by a scan over all counts; -1 when the row is behind them or the counts are wrong. A
// barrier.
__device__ int64_t expert_of_row(const Params& p, int64_t t) {
  __shared__ int64_t warp_sum_of[kWarps];
  __shared__ int64_t found;
  if (p.counts == nullptr) return 0;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int64_t share = (p.experts + kThreads - 1) / kThreads, first = thread * share;
  const int64_t last = min(first + share, p.experts);
  int64_t mine = 0;
  int wrong = 0;
  for (int64_t e = first; e < last; ++e) {
    const int64_t n = p.counts[e * p.counts_stride];
    wrong |= n < 0 || n > p.T;
    mine += n;
  }
  int64_t sum = mine;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const int64_t other = __shfl_up_sync(0xffffffffu, sum, offset);
    if (lane >= offset) sum += other;
  }
  if (lane == 31) warp_sum_of[warp] = sum;
  if (thread == 0) found = -1;
  wrong = __syncthreads_or(wrong);
  int64_t before = sum - mine, total = 0;
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) before += warp_sum_of[w];
    total += warp_sum_of[w];
  }
  if (wrong != 0 || total > p.T) {
    if (thread == 0) raise(p.faults, Fault::count);
    return -1;
  }
  if (t >= before && t < before + mine) {
    int64_t e = first, end = before + p.counts[first * p.counts_stride];
    while (end <= t) end += p.counts[++e * p.counts_stride];
    found = e;
  }
  __syncthreads();
  return found;
}

template <bool kAligned, class In>
__device__ __forceinline__ void load_stored(const In* p, int64_t n, float (&x)[kChunk]) {
  if constexpr (std::is_same_v<In, bf16>) {
    load_chunk<kAligned>(p, n, x);
  } else {
    In raw[kChunk] = {};
    if constexpr (kAligned) {
      using Word = std::conditional_t<sizeof(In) == 1, uint2, uint4>;
      constexpr int kWords = kChunk * static_cast<int>(sizeof(In)) / static_cast<int>(sizeof(Word));
#pragma unroll
      for (int i = 0; i < kWords; ++i) reinterpret_cast<Word*>(raw)[i] = reinterpret_cast<const Word*>(p)[i];
    } else {
#pragma unroll
      for (int i = 0; i < kChunk; ++i)
        if (i < n) raw[i] = p[i];
    }
#pragma unroll
    for (int i = 0; i < kChunk; ++i) x[i] = static_cast<float>(raw[i]);
  }
}

// Stored values of columns c.. to numbers, each operation rounded by itself as the contract has it.
template <bool kAligned, class In>
__device__ __forceinline__ void dequantise(const Params& p, const In* row, int64_t t, int64_t expert, int64_t c,
                                           int64_t n, float (&v)[kChunk]) {
  load_stored<kAligned>(row + c, n, v);
  if constexpr (!std::is_same_v<In, bf16>) {
    const float activation = p.activation != nullptr ? p.activation[t * p.activation_stride] : 1.0f;
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      if (i >= n) continue;
      if (p.weight.data != nullptr) v[i] *= p.weight.at(expert, c + i);
      if (p.activation != nullptr) v[i] *= activation;
      if (p.bias.data != nullptr) v[i] += p.bias.at(expert, c + i);
    }
  }
}

template <bool kAligned>
__device__ __forceinline__ void store_codes(int8_t* out, int64_t n, const int (&q)[kChunk]) {
  if constexpr (kAligned) {
    uint2 words = make_uint2(0, 0);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      words.x |= (static_cast<uint32_t>(q[i]) & 255u) << (8 * i);
      words.y |= (static_cast<uint32_t>(q[i + 4]) & 255u) << (8 * i);
    }
    *reinterpret_cast<uint2*>(out) = words;
  } else {
#pragma unroll
    for (int i = 0; i < kChunk; ++i)
      if (i < n) out[i] = static_cast<int8_t>(q[i]);
  }
}

template <int kChunks, bool kAligned, bool kDynamic, class In>
__global__ void __launch_bounds__(kThreads) dequant_situ_rows(const __grid_constant__ Params p, Rows<const In> x) {
  __shared__ float largest[kWarps];
  pdl_trigger();
  pdl_wait();
  const int64_t t = blockIdx.x, expert = expert_of_row(p, t);
  if (expert < 0) return;
  const In* row = x.at(t);
  float z[kChunks][kChunk], amax = 0;
  int nan = 0;
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    const int64_t d = (int64_t{c} * kThreads + threadIdx.x) * kChunk, n = p.N - d;
    if (n <= 0) continue;
    float left[kChunk], right[kChunk];
    dequantise<kAligned>(p, row, t, expert, d, n, left);
    dequantise<kAligned>(p, row, t, expert, p.N + d, n, right);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      z[c][i] = situ<false>(p.activate_left ? left[i] : right[i], p.activate_left ? right[i] : left[i], p.beta,
                            p.linear_beta);
      if (i >= n) continue;
      nan |= isnan(z[c][i]);
      amax = fmaxf(amax, fabsf(z[c][i]));
    }
  }
  float scale = 1;
  if constexpr (kDynamic) {
    amax = warp_max(amax);
    if (threadIdx.x % 32 == 0) largest[threadIdx.x / 32] = amax;
    nan = __syncthreads_or(nan);
#pragma unroll
    for (int w = 0; w < kWarps; ++w) amax = fmaxf(amax, largest[w]);
    scale = nan != 0 ? NAN : amax / 127;
    if (scale == 0) scale = 1;
    if (threadIdx.x == 0) p.scale[t * p.scale_stride] = scale;
  }
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    const int64_t d = (int64_t{c} * kThreads + threadIdx.x) * kChunk, n = p.N - d;
    if (n <= 0) continue;
    int q[kChunk] = {};
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      if (i >= n) continue;
      if constexpr (kDynamic) {
        if (isfinite(scale)) q[i] = __float2int_rn(z[c][i] / scale);
      } else {
        float value = z[c][i] / p.quant_scale.at(0, d + i);
        if (p.quant_offset.data != nullptr) value += p.quant_offset.at(0, d + i);
        if (!isnan(value)) q[i] = __float2int_rn(fminf(fmaxf(value, -128.0f), 127.0f));
      }
    }
    store_codes<kAligned>(p.y.at(t) + d, n, q);
  }
}

template <class F>
void dispatch_chunks(int64_t N, F&& f) {
  if (N <= kThreads * kChunk)
    f(std::integral_constant<int, 1>{});
  else if (N <= kThreads * kChunk * 2)
    f(std::integral_constant<int, 2>{});
  else
    f(std::integral_constant<int, 8>{});
}

template <class In>
void launch_rows(const Exec& ex, const DequantSituArgs& a, const DequantSituDesc& d, const Params& p) {
  const bool aligned =
      d.width % 16 == 0 && aligned16(a.x) && reinterpret_cast<uintptr_t>(a.y.data) % 8 == 0 && a.y.stride[0] % 8 == 0;
  const auto grid = static_cast<unsigned>(d.rows);
  const Launch l{.grid = grid, .block = kThreads, .pdl = pdl_pays(d.target, grid)};
  dispatch_chunks(d.width, [&](auto chunks) {
    dispatch_bool(aligned, [&](auto fast) {
      if (a.dynamic)
        launch(ex, "dequant_situ", l, dequant_situ_rows<chunks(), fast(), true, In>, p, rows<const In>(a.x));
      else if constexpr (std::is_same_v<In, int8_t>)
        launch(ex, "dequant_situ", l, dequant_situ_rows<chunks(), fast(), false, In>, p, rows<const In>(a.x));
      else
        KDELTA_UNREACHABLE("fixed quantisation of", a.x.dtype);
    });
  });
}

}  // namespace

void dequant_situ_cuda(const Exec& ex, const DequantSituArgs& a, const DequantSituDesc& d, void*) {
  if (d.rows == 0 || (d.width == 0 && !a.dynamic)) return;
  const Params p{.weight = column_parameter(a.weight_scale),
                 .bias = column_parameter(a.bias),
                 .quant_scale = column_parameter(a.quant_scale),
                 .quant_offset = column_parameter(a.quant_offset),
                 .activation = a.activation_scale.data,
                 .activation_stride = a.activation_scale.stride[0],
                 .counts = a.group_counts.data,
                 .counts_stride = a.group_counts.stride[0],
                 .experts = a.group_counts.null() ? 0 : a.group_counts.dim(0),
                 .y = rows<int8_t>(a.y),
                 .scale = a.scale.data,
                 .scale_stride = a.scale.stride[0],
                 .T = d.rows,
                 .N = d.width,
                 .beta = a.beta,
                 .linear_beta = a.linear_beta,
                 .activate_left = a.activate_left,
                 .faults = ex.faults};
  switch (a.x.dtype) {
    case DType::i8:
      return launch_rows<int8_t>(ex, a, d, p);
    case DType::i32:
      return launch_rows<int32_t>(ex, a, d, p);
    case DType::bf16:
      return launch_rows<bf16>(ex, a, d, p);
    default:
      KDELTA_UNREACHABLE("input dtype", a.x.dtype);
  }
}

}  // namespace kdelta
