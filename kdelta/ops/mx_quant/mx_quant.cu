// mx_quantize and mx_dequantize on CUDA: eight columns a thread, so that four lanes share a block of 32 and its scale.
#include "kdelta/core/matrix.h"
#include "kdelta/ops/common/alignment.h"
#include "kdelta/ops/common/cuda/group_counts.cuh"
#include "kdelta/ops/common/cuda/launch.cuh"
#include "kdelta/ops/common/cuda/math.cuh"
#include "kdelta/ops/common/cuda/mx_codes.cuh"
#include "kdelta/ops/common/cuda/row.cuh"
#include "kdelta/ops/common/cuda/views.cuh"
#include "kdelta/ops/common/dispatch.h"
#include "kdelta/ops/mx_quant/variants.h"

namespace kdelta {
namespace {

using namespace cuda;
constexpr int kThreads = 256;

struct Quantize {
  Rows<uint8_t> codes, scale;
  int64_t T, N, scales;  // scales: bytes of a row, one more than blocks when padded
  MxScaleRule rule;
  bool situ, activate_left;
  float beta, linear_beta;
  GroupCounts counts;
  uint32_t* faults;
};

// Rounded to bf16 as the contract has it: the fast form is good enough in front of that.
__device__ __forceinline__ float activated(const Quantize& p, float gate, float up) {
  return to_f32(from_f32<bf16>(situ<false>(gate, up, p.beta, p.linear_beta)));
}

template <DType kFormat, bool kAligned, class In>
__global__ void __launch_bounds__(kThreads) quantize_chunks(const __grid_constant__ Quantize p, Rows<const In> x) {
  using F = Format<kFormat>;
  pdl_trigger();
  pdl_wait();
  const int64_t rows = rows_in_use<kThreads>(p.counts, p.T, p.faults);
  const int64_t d = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kChunk, n = p.N - d;
  for (int64_t t = blockIdx.y; t < rows; t += gridDim.y) {
    float v[kChunk] = {}, amax = 0;
    if (n > 0) load_chunk<kAligned>(x.at(t) + d, n, v);
    if (p.situ && n > 0) {
      float right[kChunk];
      load_chunk<kAligned>(x.at(t) + p.N + d, n, right);
#pragma unroll
      for (int i = 0; i < kChunk; ++i)
        v[i] = p.activate_left ? activated(p, v[i], right[i]) : activated(p, right[i], v[i]);
    }
    bool finite = true;
#pragma unroll
    for (int i = 0; i < kChunk; ++i)
      if (i < n) amax = fmaxf(amax, fabsf(v[i])), finite = finite && isfinite(v[i]);
    amax = warp_max<4>(amax);
    const unsigned block_mask = 0xfu << (threadIdx.x % 32 & ~3u);
    finite = (__ballot_sync(0xffffffffu, finite) & block_mask) == block_mask;
    const int E = finite ? scale_exponent<F>(p.rule, amax) : 0;
    const float factor = power_of_two(-E);
    uint32_t code[kChunk];
#pragma unroll
    for (int i = 0; i < kChunk; i += 2) {
      const bool here = finite && i < n, next = finite && i + 1 < n;
      const uint32_t pair = code_pair<kFormat>(here ? v[i] * factor : 0.0f, next ? v[i + 1] * factor : 0.0f);
      code[i] = pair & 255, code[i + 1] = pair >> 8;
    }
    const int64_t block = d / kMxBlock;
    if (threadIdx.x % 4 == 0 && block < p.scales)
      p.scale.at(t)[block] = n <= 0 ? uint8_t{0} : finite ? static_cast<uint8_t>(E + 127) : uint8_t{255};
    if (n <= 0) continue;
    if constexpr (kFormat == DType::f4_e2m1) {
      uint8_t* out = p.codes.at(t) + d / 2;
      if constexpr (kAligned) {
        uint32_t word = 0;
#pragma unroll
        for (int i = 0; i < kChunk; ++i) word |= code[i] << (4 * i);
        *reinterpret_cast<uint32_t*>(out) = word;
      } else {
#pragma unroll
        for (int i = 0; i < kChunk; i += 2)
          if (i < n) out[i / 2] = static_cast<uint8_t>(code[i] | code[i + 1] << 4);
      }
    } else {
      uint8_t* out = p.codes.at(t) + d;
      if constexpr (kAligned) {
        uint2 words = make_uint2(0, 0);
#pragma unroll
        for (int i = 0; i < 4; ++i) words.x |= code[i] << (8 * i), words.y |= code[i + 4] << (8 * i);
        *reinterpret_cast<uint2*>(out) = words;
      } else {
#pragma unroll
        for (int i = 0; i < kChunk; ++i)
          if (i < n) out[i] = static_cast<uint8_t>(code[i]);
      }
    }
  }
}

template <DType kFormat, bool kAligned, class Out>
__global__ void __launch_bounds__(kThreads)
    dequantize_chunks(Rows<const uint8_t> codes, Rows<const uint8_t> scale, Rows<Out> out, int64_t T, int64_t N) {
  pdl_trigger();
  pdl_wait();
  const int64_t d = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kChunk, n = N - d;
  if (n <= 0) return;
  for (int64_t t = blockIdx.y; t < T; t += gridDim.y) {
    const uint8_t s = scale.at(t)[d / kMxBlock];
    const float factor = s == 255 ? NAN : power_of_two(s - 127);
    uint64_t bits = 0;
    constexpr int kBits = Format<kFormat>::kBits, kBytes = kBits;  // bytes of eight codes
    const uint8_t* in = codes.at(t) + d * kBits / 8;
    if constexpr (kAligned) {
      bits = kBytes == 8 ? *reinterpret_cast<const uint64_t*>(in) : *reinterpret_cast<const uint32_t*>(in);
    } else {
#pragma unroll
      for (int i = 0; i < kBytes; ++i)
        if (i * 8 < n * kBits) bits |= uint64_t{in[i]} << (8 * i);
    }
    float v[kChunk];
#pragma unroll
    for (int i = 0; i < kChunk; ++i)
      v[i] = value_of<kFormat>(static_cast<uint32_t>(bits >> (kBits * i)) & ((1u << kBits) - 1)) * factor;
    store_chunk<kAligned>(out.at(t) + d, n, v);
  }
}

// Codes are stored in words of four or eight bytes.
template <class V>
bool aligned8(const V& v) {
  return reinterpret_cast<uintptr_t>(v.data) % 8 == 0 && v.stride[0] % 8 == 0;
}

Launch launch_of(const Target& target, int64_t T, int64_t columns) {
  const dim3 grid(grid_of(columns, kThreads * kChunk), static_cast<unsigned>(std::min<int64_t>(T, 65535)));
  return {.grid = grid, .block = kThreads, .pdl = pdl_pays(target, int64_t{grid.x} * grid.y)};
}

}  // namespace

void mx_quantize_cuda(const Exec& ex, const MxQuantizeArgs& a, const MxDesc& d, void*) {
  if (d.rows == 0 || d.width == 0) return;
  const Quantize p{.codes = rows<uint8_t>(a.codes),
                   .scale = rows<uint8_t>(a.scale),
                   .T = d.rows,
                   .N = d.width,
                   .scales = a.scale.dim(1),
                   .rule = a.rule,
                   .situ = a.situ,
                   .activate_left = a.activate_left,
                   .beta = a.beta,
                   .linear_beta = a.linear_beta,
                   .counts = group_counts(a.group_counts),
                   .faults = ex.faults};
  const bool aligned = d.width % kChunk == 0 && aligned16(a.x) && aligned8(a.codes);
  const Launch l = launch_of(d.target, d.rows, a.scale.dim(1) * kMxBlock);
  dispatch_format(a.format, [&](auto format) {
    dispatch_activation(a.x.dtype, [&](auto in) {
      dispatch_bool(aligned, [&](auto fast) {
        using In = decltype(in);
        launch(ex, "mx_quantize", l, quantize_chunks<format(), fast(), In>, p, rows<const In>(a.x));
      });
    });
  });
}

void mx_dequantize_cuda(const Exec& ex, const MxDequantizeArgs& a, const MxDesc& d, void*) {
  if (d.rows == 0 || d.width == 0) return;
  const bool aligned = d.width % kChunk == 0 && aligned16(a.out) && aligned8(a.codes);
  const Launch l = launch_of(d.target, d.rows, d.width);
  dispatch_format(a.format, [&](auto format) {
    dispatch_activation(a.out.dtype, [&](auto out) {
      dispatch_bool(aligned, [&](auto fast) {
        using Out = decltype(out);
        launch(ex, "mx_dequantize", l, dequantize_chunks<format(), fast(), Out>, rows<const uint8_t>(a.codes),
               rows<const uint8_t>(a.scale), rows<Out>(a.out), d.rows, d.width);
      });
    });
  });
}

}  // namespace kdelta
