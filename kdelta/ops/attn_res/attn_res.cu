// attn_res on CUDA. Two forms, the same equation:
//   cuda       a block per token; the streams are read twice, the second time mostly from the L2
//   cuda_ring  persistent blocks; one warp brings whole rows into a ring in shared memory by bulk copies, ahead of the
//              warps that score and mix them, so that every row is read from device memory once; bf16
#include "kdelta/ops/attn_res/variants.h"
#include "kdelta/ops/common/cuda/async.cuh"
#include "kdelta/ops/common/cuda/launch.cuh"
#include "kdelta/ops/common/cuda/math.cuh"
#include "kdelta/ops/common/cuda/row.cuh"
#include "kdelta/ops/common/cuda/views.cuh"
#include "kdelta/ops/common/dispatch.h"

namespace kdelta {
namespace {

using namespace cuda;

constexpr int kThreads = 512, kWarps = kThreads / 32;  // that score and mix
constexpr int kMaxStreams = 32;                        // a lane each
constexpr int kHeld = 4;                               // chunks of the mixture that a thread keeps for the norm

template <class E>
struct Params {
  const E* blocks;
  int64_t block_stride, row_stride;
  Rows<const E> sum;
  Rows<E> out;
  const float *score_weight, *norm_weight;
  int64_t T, D;
  int n;
  float eps, norm_eps;

  __device__ __forceinline__ const E* stream(int i, int64_t t) const {
    return i < n ? blocks + i * block_stride + t * row_stride : sum.at(t);
  }
};

__device__ __forceinline__ void team_barrier() {
  asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
}

struct Shared {
  float dot[kMaxStreams][kWarps], square[kMaxStreams][kWarps];
  float probability[kMaxStreams];
  float norm[kWarps];
};

// A thread's share of v . score_weight and v . v, summed over its warp into shared memory.
template <bool kAligned, class E>
__device__ __forceinline__ void score_row(const E* v, const float* weight, int64_t D, int stream, Shared& s) {
  const int thread = static_cast<int>(threadIdx.x);
  float dot = 0, square = 0;
  for (int64_t d = int64_t{thread} * kChunk; d < D; d += int64_t{kThreads} * kChunk) {
    float x[kChunk], w[kChunk];
    load_chunk<kAligned>(v + d, D - d, x);
    load_chunk<kAligned>(weight + d, D - d, w);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) dot = fmaf(x[i], w[i], dot), square = fmaf(x[i], x[i], square);
  }
  dot = warp_sum(dot), square = warp_sum(square);
  if (thread % 32 == 0) s.dot[stream][thread / 32] = dot, s.square[stream][thread / 32] = square;
}

// Warp 0: the softmax of the scores, a stream a lane.
template <class E>
__device__ __forceinline__ void softmax_scores(const Params<E>& p, Shared& s) {
  if (threadIdx.x >= 32) return;
  const int i = static_cast<int>(threadIdx.x);
  float score = -INFINITY;
  if (i <= p.n) {
    float dot = 0, square = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) dot += s.dot[i][w], square += s.square[i][w];
    score = dot / sqrtf(square / static_cast<float>(p.D) + p.eps);
  }
  const float top = warp_max(score);
  const float e = i <= p.n ? expf(score - top) : 0.0f;
  s.probability[i] = e / warp_sum(e);
}

// The mixture of the chunks of this thread, rounded to E as it will be read, and the row's end: stored as it is, or
// normed. row(i) is stream i.
template <bool kAligned, class E, class Row>
__device__ __forceinline__ void mix_row(const Params<E>& p, int64_t t, Shared& s, Row&& row) {
  const int thread = static_cast<int>(threadIdx.x);
  E* out = p.out.at(t);
  float held[kHeld][kChunk], square = 0;
#pragma unroll
  for (int c = 0; c < kHeld; ++c) {
    const int64_t d = (int64_t{c} * kThreads + thread) * kChunk;
    if (d >= p.D) continue;
    float x[kChunk];
    if (p.n == 0) {
      load_chunk<kAligned>(row(0) + d, p.D - d, held[c]);
    } else {
#pragma unroll
      for (int i = 0; i < kChunk; ++i) held[c][i] = 0;
      for (int stream = 0; stream <= p.n; ++stream) {
        const float weight = s.probability[stream];
        load_chunk<kAligned>(row(stream) + d, p.D - d, x);
#pragma unroll
        for (int i = 0; i < kChunk; ++i) held[c][i] = fmaf(weight, x[i], held[c][i]);
      }
    }
    if (p.norm_weight == nullptr) {
      store_chunk<kAligned>(out + d, p.D - d, held[c]);
    } else {
#pragma unroll
      for (int i = 0; i < kChunk; ++i) {
        held[c][i] = to_f32(from_f32<E>(held[c][i]));
        square = fmaf(held[c][i], held[c][i], square);
      }
    }
  }
  if (p.norm_weight == nullptr) return;
  square = warp_sum(square);
  if (thread % 32 == 0) s.norm[thread / 32] = square;
  team_barrier();
  float total = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) total += s.norm[w];
  const float scale = rsqrtf(total / static_cast<float>(p.D) + p.norm_eps);
#pragma unroll
  for (int c = 0; c < kHeld; ++c) {
    const int64_t d = (int64_t{c} * kThreads + thread) * kChunk;
    if (d >= p.D) continue;
    float w[kChunk];
    load_chunk<kAligned>(p.norm_weight + d, p.D - d, w);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) held[c][i] = held[c][i] * scale * w[i];
    store_chunk<kAligned>(out + d, p.D - d, held[c]);
  }
}

template <bool kAligned, class E>
__global__ void __launch_bounds__(kThreads) attn_res_rows(const __grid_constant__ Params<E> p) {
  __shared__ Shared s;
  pdl_trigger();
  pdl_wait();
  for (int64_t t = blockIdx.x; t < p.T; t += gridDim.x) {
    if (p.n > 0) {
      for (int i = 0; i <= p.n; ++i) score_row<kAligned>(p.stream(i, t), p.score_weight, p.D, i, s);
      team_barrier();
      softmax_scores(p, s);
      team_barrier();
    }
    mix_row<kAligned>(p, t, s, [&](int i) { return p.stream(i, t); });
    team_barrier();  // the next token writes the sums again
  }
}

#if __CUDA_ARCH__ >= 900 || !defined(__CUDA_ARCH__)

constexpr int kMaxSlots = 32;
constexpr int kRingThreads = 448, kRingWarps = kRingThreads / 32;  // 16 elements each: rows of up to 7168
constexpr int kRingChunks = 2;

__device__ __forceinline__ void ring_barrier() {
  asm volatile("bar.sync 1, %0;" ::"n"(kRingThreads) : "memory");
}

// Sums of four numbers over a warp in six shuffles: a lane with its low three bits clear ends with sum number
// (lane / 8 % 2) + 2 * (lane / 16).
__device__ __forceinline__ float four_sums(const float* x, int lane) {
  const bool upper = (lane & 16) != 0, odd = (lane & 8) != 0;
  const float first = (upper ? x[2] : x[0]) + __shfl_xor_sync(0xffffffffu, upper ? x[0] : x[2], 16);
  const float second = (upper ? x[3] : x[1]) + __shfl_xor_sync(0xffffffffu, upper ? x[1] : x[3], 16);
  float sum = (odd ? second : first) + __shfl_xor_sync(0xffffffffu, odd ? first : second, 8);
#pragma unroll
  for (int offset = 4; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  return sum;
}

// The streams of a token stay in registers between their scores and their mixture, so a row's place in the ring is free
// as soon as it has been read once. Sums of two tokens are apart, so that one barrier a token orders them.
template <int kStreams>
__global__ void __launch_bounds__(kRingThreads + 32, 1)
    attn_res_ring(const __grid_constant__ Params<bf16> p, int slots) {
  constexpr int kSums = (2 * kStreams + 3) / 4 * 4;
  extern __shared__ __align__(128) uint8_t ring[];
  __shared__ float partial[2][kRingWarps][kSums], squares[2][kRingWarps];
  __shared__ uint64_t full[kMaxSlots], done[kMaxSlots];  // a row has come; the rows of a token have been read
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  if (thread == 0) {
    for (int i = 0; i < kMaxSlots; ++i) barrier_init(full + i, 1), barrier_init(done + i, kRingWarps);
    fence_barrier_init();
  }
  __syncthreads();
  pdl_trigger();
  pdl_wait();
  const auto row_bytes = static_cast<uint32_t>(p.D * 2);
  const int mine = static_cast<int>(p.T > blockIdx.x ? (p.T - blockIdx.x + gridDim.x - 1) / gridDim.x : 0);

  if (thread >= kRingThreads) {
    if (lane != 0) return;
    int slot = 0, round = 0;  // row r lies in slot r % slots
    for (int64_t r = 0; r < int64_t{mine} * kStreams; ++r) {
      const int64_t t = blockIdx.x + r / kStreams * gridDim.x;
      if (round > 0) {
        const int64_t user = (r - slots) / kStreams;  // the token whose row lies there
        barrier_wait(done + user % kMaxSlots, static_cast<uint32_t>(user / kMaxSlots) & 1);
      }
      barrier_expect(full + slot, row_bytes);
      bulk_load(ring + static_cast<int64_t>(slot) * row_bytes, p.stream(static_cast<int>(r % kStreams), t), row_bytes,
                full + slot);
      if (++slot == slots) slot = 0, ++round;
    }
    return;
  }

  // Each thread's own score weights, behind the ring: registers hold the streams.
  auto* weights = reinterpret_cast<float4*>(ring + static_cast<int64_t>(slots) * row_bytes) + thread;
#pragma unroll
  for (int c = 0; c < kRingChunks; ++c) {
    const int64_t d = (int64_t{c} * kRingThreads + thread) * kChunk;
#pragma unroll
    for (int half = 0; half < 2; ++half)
      weights[(2 * c + half) * kRingThreads] =
          d < p.D ? reinterpret_cast<const float4*>(p.score_weight + d)[half] : make_float4(0, 0, 0, 0);
  }
  int slot = 0;
  uint32_t phase = 0;
  for (int k = 0; k < mine; ++k) {
    RawChunk<true, bf16> raw[kStreams][kRingChunks];
#pragma unroll
    for (int s = 0; s < kStreams; ++s) {
      barrier_wait(full + slot, phase);
      const auto* row = reinterpret_cast<const bf16*>(ring + static_cast<int64_t>(slot) * row_bytes);
#pragma unroll
      for (int c = 0; c < kRingChunks; ++c) {
        const int64_t d = (int64_t{c} * kRingThreads + thread) * kChunk;
        raw[s][c].word[0] = make_uint4(0, 0, 0, 0);
        if (d < p.D) raw[s][c].load(row + d, kChunk);
      }
      if (++slot == slots) slot = 0, phase ^= 1;
    }
    // The rows are in registers: their places are free while the token is worked on.
    __syncwarp();
    if (lane == 0) barrier_arrive(done + k % kMaxSlots);

    float probability = 1;  // of stream `lane`
    if constexpr (kStreams > 1) {
      float weight[kRingChunks][kChunk];
#pragma unroll
      for (int c = 0; c < kRingChunks; ++c) {
        const float4 low = weights[2 * c * kRingThreads], high = weights[(2 * c + 1) * kRingThreads];
        weight[c][0] = low.x, weight[c][1] = low.y, weight[c][2] = low.z, weight[c][3] = low.w;
        weight[c][4] = high.x, weight[c][5] = high.y, weight[c][6] = high.z, weight[c][7] = high.w;
      }
#pragma unroll
      for (int first = 0; first < kStreams; first += 2) {  // two streams: four sums
        float sums[4] = {};
#pragma unroll
        for (int s = first; s < first + 2 && s < kStreams; ++s)
#pragma unroll
          for (int c = 0; c < kRingChunks; ++c) {
            float x[kChunk];
            raw[s][c].unpack(x);
#pragma unroll
            for (int i = 0; i < kChunk; ++i) {
              sums[2 * (s - first)] = fmaf(x[i], weight[c][i], sums[2 * (s - first)]);
              sums[2 * (s - first) + 1] = fmaf(x[i], x[i], sums[2 * (s - first) + 1]);
            }
          }
        const float sum = four_sums(sums, lane);
        if (lane % 8 == 0) partial[k & 1][warp][2 * first + (lane / 8 % 2) + 2 * (lane / 16)] = sum;
      }
      ring_barrier();
      float score = -INFINITY;
      if (lane < kStreams) {
        float dot = 0, square = 0;
#pragma unroll
        for (int w = 0; w < kRingWarps; ++w)
          dot += partial[k & 1][w][2 * lane], square += partial[k & 1][w][2 * lane + 1];
        score = dot / sqrtf(square / static_cast<float>(p.D) + p.eps);
      }
      const float top = warp_max(score);  // every lane takes part
      const float e = lane < kStreams ? expf(score - top) : 0.0f;
      probability = e / warp_sum(e);
    }
    float mix[kRingChunks][kChunk] = {};
#pragma unroll
    for (int s = 0; s < kStreams; ++s) {
      const float weight_of = kStreams > 1 ? __shfl_sync(0xffffffffu, probability, s) : 1.0f;
#pragma unroll
      for (int c = 0; c < kRingChunks; ++c) {
        float x[kChunk];
        raw[s][c].unpack(x);
#pragma unroll
        for (int i = 0; i < kChunk; ++i) mix[c][i] = kStreams > 1 ? fmaf(weight_of, x[i], mix[c][i]) : x[i];
      }
    }
    float scale = 1;
    if (p.norm_weight != nullptr) {
      float square = 0;
#pragma unroll
      for (int c = 0; c < kRingChunks; ++c)
#pragma unroll
        for (int i = 0; i < kChunk; ++i) {
          mix[c][i] = to_f32(from_f32<bf16>(mix[c][i]));
          square = fmaf(mix[c][i], mix[c][i], square);
        }
      square = warp_sum(square);
      if (lane == 0) squares[k & 1][warp] = square;
      ring_barrier();
      float total = 0;
#pragma unroll
      for (int w = 0; w < kRingWarps; ++w) total += squares[k & 1][w];
      scale = rsqrtf(total / static_cast<float>(p.D) + p.norm_eps);
    }
    bf16* out = p.out.at(blockIdx.x + int64_t{k} * gridDim.x);
#pragma unroll
    for (int c = 0; c < kRingChunks; ++c) {
      const int64_t d = (int64_t{c} * kRingThreads + thread) * kChunk;
      if (d >= p.D) continue;
      if (p.norm_weight != nullptr) {
        float w[kChunk];
        load<true>(p.norm_weight + d, w);
#pragma unroll
        for (int i = 0; i < kChunk; ++i) mix[c][i] = mix[c][i] * scale * w[i];
      }
      store<true>(out + d, mix[c]);
    }
  }
}

#else
template <int kStreams>
__global__ void attn_res_ring(const __grid_constant__ Params<bf16> p, int slots) {}
#endif

// f(streams) as an integral constant.
template <class F, int... kLess>
void dispatch_streams(int64_t streams, F&& f, std::integer_sequence<int, kLess...>) {
  (void)((streams == kLess + 1 && (f(std::integral_constant<int, kLess + 1>{}), true)) || ...);
}

template <class E>
Params<E> params_of(const AttnResArgs& a) {
  Params<E> p{.sum = rows<const E>(a.sum),
              .out = rows<E>(a.out),
              .score_weight = a.score_weight.data,
              .norm_weight = a.norm_weight.data,
              .T = a.sum.dim(0),
              .D = a.sum.dim(1),
              .n = static_cast<int>(a.n),
              .eps = a.eps,
              .norm_eps = a.norm_eps};
  if (a.n > 0) {
    p.blocks = static_cast<const E*>(a.blocks.data);
    p.block_stride = a.blocks.stride[0], p.row_stride = a.blocks.stride[1];
  }
  return p;
}

}  // namespace

void attn_res_cuda(const Exec& ex, const AttnResArgs& a, const AttnResDesc& d, void*) {
  const unsigned grid = grid_of(d.rows, 1, 65535);
  dispatch_activation(a.sum.dtype, [&](auto element) {
    dispatch_bool(d.aligned, [&](auto fast) {
      launch(ex, "attn_res", {.grid = grid, .block = kThreads, .pdl = pdl_pays(d.target, grid)},
             attn_res_rows<fast(), decltype(element)>, params_of<decltype(element)>(a));
    });
  });
}

void attn_res_cuda_ring(const Exec& ex, const AttnResArgs& a, const AttnResDesc& d, void*) {
  const int slots = static_cast<int>(attn_res_ring_slots(d));
  const unsigned grid = grid_of(d.rows, 1, d.target.multiprocessors);
  const Launch l{.grid = grid,
                 .block = kRingThreads + 32,
                 .shared_bytes = static_cast<int>(slots * d.width * 2 + kRingThreads * kRingChunks * kChunk * 4),
                 .pdl = pdl_pays(d.target, grid)};
  dispatch_streams(
      a.n + 1, [&](auto streams) { launch(ex, "attn_res", l, attn_res_ring<streams()>, params_of<bf16>(a), slots); },
      std::make_integer_sequence<int, 9>{});
}

}  // namespace kdelta
