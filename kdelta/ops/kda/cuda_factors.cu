// Factors of every chunk and head, token-parallel: gate, cumulative decays, norms, the decayed operands, the two
// triangular score matrices in blocks of 16 with the block's first row as anchor, inverses of the diagonal blocks by
// forward substitution in fp32, and block substitution on [V | decayed K]. A block of eight warps works through (chunk,
// head) pairs, a warp has eight tokens; the next pair's rows are on their way to the L2 while this one's products run.
// Two blocks share a multiprocessor. The kernel is bound by the number of its instructions, so each thread does much:
// four channels of eight tokens. In-block operands are fp16 where the decay over a block stays below 14 bits in every
// channel, bf16 where it is larger. Where it leaves the range of bf16 too (softplus gates have no bound) the right
// operand is anchored at the block's last row, and the diagonal blocks are summed pair by pair.
#include "kdelta/ops/common/cuda/launch.cuh"
#include "kdelta/ops/kda/cuda_factors.cuh"

namespace kdelta::kda_cuda {
namespace {

constexpr int kThreads = 256;
constexpr float kLog2e = 1.4426950408889634f;
constexpr float kForgotten = -300.0f;  // log2 of a decay that is zero in fp32; keeps infinities out of the sums

// Four channels of a token's gate, key or query.
__device__ __forceinline__ uint2 load_four(const void* p) {
  uint2 r;
  asm volatile("ld.global.nc.v2.b32 {%0,%1}, [%2];" : "=r"(r.x), "=r"(r.y) : "l"(p));
  return r;
}
__device__ __forceinline__ float4 load_four_f32(const void* p) {
  float4 r;
  asm volatile("ld.global.nc.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(r.x), "=f"(r.y), "=f"(r.z), "=f"(r.w) : "l"(p));
  return r;
}
__device__ __forceinline__ void load_gate(const char* p, uint2& out) {
  out = load_four(p);
}
__device__ __forceinline__ void load_gate(const char* p, float4& out) {
  out = load_four_f32(p);
}
__device__ __forceinline__ void widen(uint2 x, float (&f)[4]) {
  unpack<Half::bf16>(x.x, f[0], f[1]);
  unpack<Half::bf16>(x.y, f[2], f[3]);
}
__device__ __forceinline__ void widen(float4 x, float (&f)[4]) {
  f[0] = x.x, f[1] = x.y, f[2] = x.z, f[3] = x.w;
}
// A gate that decays nothing, whatever the bias.
__device__ __forceinline__ void close(uint2& x) {
  x = make_uint2(0xff80ff80u, 0xff80ff80u);
}
__device__ __forceinline__ void close(float4& x) {
  x = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
}

template <class Gate>
struct Raw {
  uint2 q[8], k[8];
  Gate g[8];
};

// Where a thread works in the first half: eight tokens, four channels.
struct Place {
  int eight = static_cast<int>(threadIdx.x >> 5), lane = static_cast<int>(threadIdx.x & 31);
  int channel = lane * 4, token = eight * 8, block = eight >> 1;
};

// First byte of a chunk's rows of one head. Byte offsets inside a chunk fit 32 bits (kMostStride).
__device__ __forceinline__ const char* chunk_rows(const Operand& x, const Chunk& c, int h) {
  return static_cast<const char*>(x.data) + (c.begin * x.token + h * x.head) * (x.is_bf16 ? 2 : 4);
}

// Rows past the end become zeros with a gate that decays nothing.
template <class Gate>
__device__ __forceinline__ void load_raw(const Args& a, const Chunk& c, int h, const Place& at, Raw<Gate>& x) {
  constexpr int kGateBytes = static_cast<int>(sizeof(Gate) / 4);
  const int q_stride = static_cast<int>(a.q.token) * 2, k_stride = static_cast<int>(a.k.token) * 2;
  const int g_stride = static_cast<int>(a.gate.token) * kGateBytes;
  const char* q = chunk_rows(a.q, c, h) + at.token * q_stride + at.channel * 2;
  const char* k = chunk_rows(a.k, c, h) + at.token * k_stride + at.channel * 2;
  const char* g = chunk_rows(a.gate, c, h) + at.token * g_stride + at.channel * kGateBytes;
  if (c.tokens == kChunkTokens) {
#pragma unroll
    for (int i = 0; i < 8; ++i) load_gate(g, x.g[i]), g += g_stride;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      x.k[i] = load_four(k), x.q[i] = load_four(q);
      k += k_stride, q += q_stride;
    }
  } else {
    const int live = c.tokens - at.token;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      x.k[i] = x.q[i] = make_uint2(0, 0);
      close(x.g[i]);
      if (i < live) {
        load_gate(g + i * g_stride, x.g[i]);
        x.k[i] = load_four(k + i * k_stride), x.q[i] = load_four(q + i * q_stride);
      }
    }
  }
}

__device__ __forceinline__ void load_values(const Args& a, const Chunk& c, int h, FactorShared& s) {
  const char* v = chunk_rows(a.v, c, h);
  const int stride = static_cast<int>(a.v.token) * 2;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int piece = static_cast<int>(threadIdx.x) + i * kThreads, row = piece >> 4, column = piece & 15;
    cuda::copy16(cuda::shared_address(s.v + row * kPitch + column * 8),
                 v + min(row, c.tokens - 1) * stride + column * 16, row < c.tokens ? 16 : 0);
  }
}

// Asks for the lines of a pair to come: four operands, 64 rows of 256 bytes (of fp32 gates the first half).
__device__ __forceinline__ void prefetch(const Args& a, const Chunk& c, int h) {
  const int row = static_cast<int>(threadIdx.x) & 63, which = static_cast<int>(threadIdx.x >> 6);
  const Operand& x = which == 0 ? a.gate : which == 1 ? a.k : which == 2 ? a.q : a.v;
  if (row >= c.tokens) return;
  const char* p = chunk_rows(x, c, h) + row * static_cast<int>(x.token) * (x.is_bf16 ? 2 : 4);
  asm volatile("prefetch.global.L2 [%0];\nprefetch.global.L2 [%0 + 128];" ::"l"(p));
}

// log2 of a token's decay, softplus form.
__device__ __forceinline__ float softplus_gate(float z, float A) {
  const float y = cuda::exp2_fast(kLog2e * z);
  // log2(1 + y): the logarithm loses small y, the series large ones
  const float small = kLog2e * y * (1.0f - y * (0.5f - y * (0.33333333f - 0.25f * y)));
  const float x = -A * (z > 20.0f ? kLog2e * z : y < 0.02f ? small : cuda::log2_fast(1.0f + y));
  return x < kForgotten ? kForgotten : x;  // NaN stays
}

// Cumulative log2 decays of the thread's four channels over its eight tokens.
template <class Gate>
__device__ __forceinline__ void cumulate(const Args& a, int h, const Place& at, const Raw<Gate>& x,
                                         float (&sum)[8][4]) {
  const float A = cuda::exp2_fast(kLog2e * __ldg(a.a_log + h));
  const float* from = a.dt_bias + h * a.dt_head + at.channel;
  float bias[4], s[4] = {0, 0, 0, 0};
#pragma unroll
  for (int e = 0; e < 4; ++e) bias[e] = __ldg(from + e);
  if (a.bounded) {  // bound / (1 + 2^(-A log2(e) (x + bias)))
    const float bound = a.lower_bound * kLog2e, minus_A = -kLog2e * A;
#pragma unroll
    for (int e = 0; e < 4; ++e) bias[e] *= minus_A;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float z[4];
      widen(x.g[i], z);
#pragma unroll
      for (int e = 0; e < 4; ++e)
        sum[i][e] = s[e] =
            fmaf(bound, cuda::reciprocal_fast(1.0f + cuda::exp2_fast(fmaf(minus_A, z[e], bias[e]))), s[e]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float z[4];
      widen(x.g[i], z);
#pragma unroll
      for (int e = 0; e < 4; ++e) sum[i][e] = s[e] += softplus_gate(z[e] + bias[e], A);
    }
  }
}

// Halves 2 m values of each of 32 lanes to m by exchanging with the lane `kMask` away: compile-time bounds keep z in
// registers.
template <int kMask>
__device__ __forceinline__ void fold(float (&z)[16], int lane) {
  const bool upper = (lane & kMask) != 0;
#pragma unroll
  for (int i = 0; i < kMask / 2; ++i) {
    const float send = upper ? z[i] : z[i + kMask / 2], keep = upper ? z[i + kMask / 2] : z[i];
    z[i] = keep + __shfl_xor_sync(~0u, send, kMask);
  }
}

// 1 / norm of the warp's eight keys (even) and queries (odd): number lane / 2.
template <class Gate>
__device__ __forceinline__ float inverse_norm(const Raw<Gate>& x, int lane) {
  float z[16];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    float k[4], q[4];
    widen(x.k[i], k), widen(x.q[i], q);
    z[2 * i] = fmaf(k[3], k[3], fmaf(k[2], k[2], fmaf(k[1], k[1], k[0] * k[0])));
    z[2 * i + 1] = fmaf(q[3], q[3], fmaf(q[2], q[2], fmaf(q[1], q[1], q[0] * q[0])));
  }
  fold<16>(z, lane), fold<8>(z, lane), fold<4>(z, lane), fold<2>(z, lane);
  return rsqrtf(z[0] + __shfl_xor_sync(~0u, z[0], 1) + 1e-6f);
}

// What all tokens of a block share, from the totals: 128 channels by two threads of two blocks each.
__device__ __forceinline__ void write_block_decays(int mode, FactorShared& s, char* record) {
  const bool wide = mode == kWide;
  const int d = static_cast<int>(threadIdx.x & 127), part = static_cast<int>(threadIdx.x >> 7);
  float block[4], first[4], before[5];
  before[0] = 0;
#pragma unroll
  for (int b = 0; b < 4; ++b) {
    block[b] = s.total[2 * b][d] + s.total[2 * b + 1][d];
    first[b] = s.first[b][d];
    before[b + 1] = before[b] + block[b];
  }
  if (part == 0) {
    *reinterpret_cast<float*>(record + kRecordD + d * 4) = cuda::exp2_fast(before[4]);
    float rest = 0;
#pragma unroll
    for (int b = 3; b >= 0; --b) {
      s.since_start[b][d] = cuda::exp2_fast(before[b] + first[b]);
      s.to_end[b][d] = cuda::exp2_fast(rest + (wide ? 0.0f : block[b] - first[b]));
      rest += block[b];
    }
  } else {
#pragma unroll
    for (int I = 1; I < 4; ++I) {
      float since = first[I];
#pragma unroll
      for (int J = I - 1; J >= 0; --J) {
        const float decay = cuda::exp2_fast(since + (wide ? 0.0f : block[J] - first[J]));
        const int pair = I * (I - 1) / 2 + J;
        if (mode == kFp16)
          s.between[pair][d] = decay;
        else
          s.between_bf16[pair][d] = static_cast<uint16_t>(pack<Half::bf16>(decay, 0.0f));
        since += block[J];
      }
    }
  }
}

// Decayed operands of the thread's tokens, to shared memory and, as fp16, to the record.
template <Mode kMode, class Gate>
__device__ __forceinline__ void write_operands(const Place& at, const Raw<Gate>& x, const float (&sum)[8][4],
                                               float norm, bool l2, float scale, FactorShared& s, char* record) {
  constexpr Half kType = kMode == kFp16 ? Half::f16 : Half::bf16;
  // log2: what a token's sum lacks of its decay since the block's first row; that of the block's last row
  float start[4], end[4], left[4], last[4];
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    const int d = at.channel + e;
    start[e] = s.since_start[at.block][d], end[e] = s.to_end[at.block][d];
    const float ahead = at.eight & 1 ? s.total[at.eight - 1][d] : 0.0f;  // the block's first half
    left[e] = ahead - s.first[at.block][d];
    if (kMode == kWide) last[e] = s.total[at.block * 2][d] + s.total[at.block * 2 + 1][d] - s.first[at.block][d];
  }
  char* tile = record + (at.lane >> 4) * 8192 + at.token * 128 + (at.lane & 1) * 8;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int row = at.token + i, place = i * 128 + ((((at.lane & 15) >> 1) ^ i) << 4);
    float nk = __shfl_sync(~0u, norm, 4 * i), nq = __shfl_sync(~0u, norm, 4 * i + 2);
    nk = l2 ? nk : 1.0f, nq = l2 ? nq * scale : scale;
    float q[4], k[4], since[4], p[4];
    widen(x.q[i], q), widen(x.k[i], k);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      since[e] = sum[i][e] + left[e];
      p[e] = cuda::exp2_fast(since[e]);
      q[e] *= nq * p[e], k[e] *= nk;
    }
    const int shared_place = row * kPitch + at.channel;
    *reinterpret_cast<uint2*>(&s.q_left[shared_place]) = make_uint2(pack<kType>(q[0], q[1]), pack<kType>(q[2], q[3]));
    *reinterpret_cast<uint2*>(&s.k_left[shared_place]) =
        make_uint2(pack<kType>(k[0] * p[0], k[1] * p[1]), pack<kType>(k[2] * p[2], k[3] * p[3]));
#pragma unroll
    for (int e = 0; e < 4; ++e) k[e] *= cuda::exp2_fast(kMode == kWide ? last[e] - since[e] : -since[e]);
    *reinterpret_cast<uint2*>(&s.k_right[shared_place]) = make_uint2(pack<kType>(k[0], k[1]), pack<kType>(k[2], k[3]));
    *reinterpret_cast<uint2*>(tile + kRecordQ + place) = make_uint2(pack<Half::f16>(q[0] * start[0], q[1] * start[1]),
                                                                    pack<Half::f16>(q[2] * start[2], q[3] * start[3]));
    *reinterpret_cast<uint2*>(tile + kRecordK + place) =
        make_uint2(pack<Half::f16>(k[0] * end[0], k[1] * end[1]), pack<Half::f16>(k[2] * end[2], k[3] * end[3]));
  }
}

template <class Gate>
__global__ void __launch_bounds__(kThreads, 2)
    factors_kernel(const __grid_constant__ Args a, const __grid_constant__ Workspace w) {
  extern __shared__ __align__(1024) char shared_bytes[];
  FactorShared& s = *reinterpret_cast<FactorShared*>(shared_bytes);
  const int warp = static_cast<int>(threadIdx.x >> 5);
  const Place at;
  cuda::pdl_wait();
  cuda::pdl_trigger();
  const int chunks = w.plan->chunks;
  const int chunk_step = static_cast<int>(gridDim.x) / a.H, head_step = static_cast<int>(gridDim.x) % a.H;
  int chunk = static_cast<int>(blockIdx.x) / a.H, h = static_cast<int>(blockIdx.x) % a.H;
  if (chunk >= chunks) return;
  Chunk c = w.chunk[chunk];

  while (true) {
    char* record = w.record + (static_cast<int64_t>(h) * w.chunk_cap + chunk) * kRecordBytes;
    int next_chunk = chunk + chunk_step, next_h = h + head_step;
    if (next_h >= a.H) next_h -= a.H, ++next_chunk;
    Raw<Gate> x;
    load_raw(a, c, h, at, x);
    load_values(a, c, h, s);
    Chunk next = c;
    if (next_chunk < chunks) next = w.chunk[next_chunk];
    if (threadIdx.x < 64) {
      const int i = static_cast<int>(threadIdx.x);
      s.beta[i] = i < c.tokens ? beta_of(a, c.begin + i, h) : 0.0f;
    }
    float sum[8][4];
    cumulate(a, h, at, x, sum);
    *reinterpret_cast<float4*>(&s.total[at.eight][at.channel]) =
        make_float4(sum[7][0], sum[7][1], sum[7][2], sum[7][3]);
    if ((at.eight & 1) == 0)
      *reinterpret_cast<float4*>(&s.first[at.block][at.channel]) =
          make_float4(sum[0][0], sum[0][1], sum[0][2], sum[0][3]);
    const float bits = -fminf(fminf(sum[7][0], sum[7][1]), fminf(sum[7][2], sum[7][3]));
    const int mode_here = __any_sync(~0u, bits > 60.0f) ? kWide : __any_sync(~0u, bits > 7.0f) ? kBf16 : kFp16;
    if (at.lane == 0) s.mode[warp] = mode_here;
    if (threadIdx.x == 0) cuda::bulk_wait_read<0>();  // the last W has left k_right
    __syncthreads();

    int mode = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) mode = max(mode, s.mode[i]);
    const bool wide = mode == kWide;
    write_block_decays(mode, s, record);
    const float norm = inverse_norm(x, at.lane);
    __syncthreads();

    if (mode == kFp16)
      write_operands<kFp16>(at, x, sum, norm, a.l2, a.scale, s, record);
    else if (mode == kBf16)
      write_operands<kBf16>(at, x, sum, norm, a.l2, a.scale, s, record);
    else
      write_operands<kWide>(at, x, sum, norm, a.l2, a.scale, s, record);
    if (wide) {
#pragma unroll
      for (int i = 0; i < 8; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          log_row(record, at.token + i)[at.channel + e] =
              sum[i][e] + (at.eight & 1 ? s.total[at.eight - 1][at.channel + e] : 0.0f);
    }
    if (next_chunk < chunks) prefetch(a, next, next_h);
    cuda::copies_wait_all();
    __syncthreads();

    if (wide && warp < 4) wide_diagonal(a, c.begin, c.tokens, h, s, record, warp);
    if (mode == kFp16)
      products<Half::f16>(s, record, warp, false);
    else
      products<Half::bf16>(s, record, warp, wide);
    __syncthreads();

    if (mode == kFp16)
      substitute<Half::f16>(s, record);
    else
      substitute<Half::bf16>(s, record);
    cuda::fence_shared_for_bulk();
    if (wide) cuda::fence_memory_for_bulk();  // log_row
    __syncthreads();
    if (threadIdx.x == 0) {
      cuda::bulk_store(record + kRecordW, cuda::shared_address(s.k_right), 16384);
      cuda::bulk_commit();
    }
    if (next_chunk >= chunks) break;
    chunk = next_chunk, h = next_h, c = next;
  }
  if (threadIdx.x == 0) cuda::bulk_wait<0>();
}

}  // namespace

void launch_factors(const Exec& ex, const Args& a, const Workspace& w, int multiprocessors) {
  const int64_t items = static_cast<int64_t>(w.chunk_cap) * a.H;
  const cuda::Launch launch{.grid = cuda::grid_of(items, 1, 2 * multiprocessors),
                            .block = kThreads,
                            .shared_bytes = static_cast<int>(sizeof(FactorShared)),
                            .pdl = true};
  cuda::launch(ex, "kda", launch, a.gate.is_bf16 ? factors_kernel<uint2> : factors_kernel<float4>, a, w);
}

}  // namespace kdelta::kda_cuda
