// attn_res on CUDA. Three forms, the same equation:
//   cuda          a block per token; the streams are read twice, the second time mostly from the L2
//   cuda_ring     persistent blocks; one warp brings whole rows into a ring in shared memory by bulk copies, ahead of
//   the
//                 warps that score and mix them, so that every row is read from device memory once; bf16
//   cuda_cluster  for few tokens: the warps of a ring's block are spread over eight multiprocessors, two each, which
//                 exchange their sums; the bits of cuda_ring
// The last two are in cuda_ring.cu.
#include "kdelta/ops/attn_res/cuda_params.cuh"
#include "kdelta/ops/common/cuda/launch.cuh"
#include "kdelta/ops/common/cuda/row.cuh"
#include "kdelta/ops/common/dispatch.h"

namespace kdelta {
namespace {

using namespace cuda;

constexpr int kThreads = 512, kWarps = kThreads / 32;  // that score and mix
constexpr int kMaxStreams = 32;                        // a lane each
constexpr int kHeld = 4;                               // chunks of the mixture that a thread keeps for the norm

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

// sum_out = sum + addend, the chunks that this thread will read again.
template <bool kAligned, class E>
__device__ __forceinline__ void add_row(const AttnResParams<E>& p, int64_t t) {
  const E *sum = p.sum.at(t), *addend = p.addend.at(t);
  E* out = p.sum_out.at(t);
  for (int64_t d = int64_t{threadIdx.x} * kChunk; d < p.D; d += int64_t{kThreads} * kChunk) {
    float x[kChunk], y[kChunk];
    load_chunk<kAligned>(sum + d, p.D - d, x);
    load_chunk<kAligned>(addend + d, p.D - d, y);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) x[i] += y[i];
    store_chunk<kAligned>(out + d, p.D - d, x);
  }
}

// Warp 0: the softmax of the scores, a stream a lane.
template <class E>
__device__ __forceinline__ void softmax_scores(const AttnResParams<E>& p, Shared& s) {
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
__device__ __forceinline__ void mix_row(const AttnResParams<E>& p, int64_t t, Shared& s, Row&& row) {
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
__global__ void __launch_bounds__(kThreads) attn_res_rows(const __grid_constant__ AttnResParams<E> p) {
  __shared__ Shared s;
  pdl_trigger();
  pdl_wait();
  for (int64_t t = blockIdx.x; t < p.T; t += gridDim.x) {
    if (p.adds) add_row<kAligned>(p, t);
    const auto stream = [&](int i) { return i == p.n && p.adds ? p.sum_out.at(t) : p.stream(i, t); };
    if (p.n > 0) {
      for (int i = 0; i <= p.n; ++i) score_row<kAligned>(stream(i), p.score_weight, p.D, i, s);
      team_barrier();
      softmax_scores(p, s);
      team_barrier();
    }
    mix_row<kAligned>(p, t, s, stream);
    team_barrier();  // the next token writes the sums again
  }
}

}  // namespace

void attn_res_cuda(const Exec& ex, const AttnResArgs& a, const AttnResDesc& d, void*) {
  const unsigned grid = grid_of(d.rows, 1, 65535);
  dispatch_activation(a.sum.dtype, [&](auto element) {
    dispatch_bool(d.aligned, [&](auto fast) {
      launch(ex, "attn_res", {.grid = grid, .block = kThreads, .pdl = pdl_pays(d.target, grid)},
             attn_res_rows<fast(), decltype(element)>, attn_res_params<decltype(element)>(a));
    });
  });
}

}  // namespace kdelta
