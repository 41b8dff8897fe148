// mla on any CUDA device in plain fp32: prefill and decode alike in the absorbed form. Four kernels: which rows are
// sound; q' = [W_UK^T q | q_rope] of every token; one block per token and group of heads over the past, in blocks of 32
// absolute positions; W_UV. Tokens are taken in batches of a fixed size, so scratch does not grow with them.
#include "kdelta/ops/common/cuda/launch.cuh"
#include "kdelta/ops/common/cuda/views.cuh"
#include "kdelta/ops/common/dispatch.h"
#include "kdelta/ops/mla/cuda_layout.h"
#include "kdelta/ops/mla/cuda_paged.cuh"
#include "kdelta/ops/mla/cuda_weight.cuh"

namespace kdelta {
namespace {

using namespace cuda;
using namespace mla_cuda;

constexpr int kThreads = 128, kWarps = kThreads / 32;
constexpr int kPositions = 32;  // of a block
constexpr int kTogether = 8;    // tokens that share a read of kv_b

struct Params {
  PagedArrays seq;
  int H, N, R, V, L;
  float scale;
  PortableWork w;
  uint32_t* faults;
  int64_t first, rows;  // the batch: tokens [first, first + rows)

  __device__ __forceinline__ int width() const { return L + R; }
  __device__ __forceinline__ float* query(int64_t i, int h) const { return w.query + (i * H + h) * width(); }
  __device__ __forceinline__ float* sums(int64_t i, int h) const { return w.sums + (i * H + h) * L; }
};

__global__ void __launch_bounds__(kThreads) check_rows(const __grid_constant__ Params p) {
  const int n = static_cast<int>(blockIdx.x);
  const bool faulty = row_is_faulty(p.seq, n, p.faults);
  if (threadIdx.x == 0) p.w.sound[n] = faulty ? 0 : 1;
}

// A thread owns a column of q' of kTogether tokens.
template <class X, class W>
__global__ void __launch_bounds__(kThreads)
    absorb(const __grid_constant__ Params p, HeadRows<const X> q, const __grid_constant__ W weight) {
  __shared__ float shared[kTogether][kThreads];
  const int h = static_cast<int>(blockIdx.y), tid = static_cast<int>(threadIdx.x);
  const int l = static_cast<int>(blockIdx.x) * kThreads + tid;
  const int64_t i0 = int64_t{blockIdx.z} * kTogether;
  const int count = static_cast<int>(min(int64_t{kTogether}, p.rows - i0));
  float sum[kTogether] = {};
  for (int d0 = 0; d0 < p.N; d0 += kThreads) {
    __syncthreads();
    for (int i = 0; i < count; ++i)
      shared[i][tid] = d0 + tid < p.N ? to_f32(q.at(p.first + i0 + i, h)[d0 + tid]) : 0.0f;
    __syncthreads();
    for (int d = 0; l < p.L && d < min(kThreads, p.N - d0); ++d) {
      const float x = weight.at(int64_t{h} * (p.N + p.V) + d0 + d, l);
#pragma unroll
      for (int i = 0; i < kTogether; ++i)
        if (i < count) sum[i] = fmaf(shared[i][d], x, sum[i]);
    }
  }
  if (l >= p.width()) return;
#pragma unroll
  for (int i = 0; i < kTogether; ++i)
    if (i < count) {
      if (l >= p.L) sum[i] = to_f32(q.at(p.first + i0 + i, h)[p.N + l - p.L]);
      p.query(i0 + i, h)[l] = sum[i] * p.scale;
    }
}

template <int kHeads>
struct Shared {
  float p[kHeads][kPositions];
  float max[kHeads], sum[kHeads], factor[kHeads];
  int64_t row[kPositions];
};

template <int kHeads, class C>
__global__ void __launch_bounds__(kThreads) attend(const __grid_constant__ Params p, const C* cache) {
  static_assert(kHeads <= kWarps);
  extern __shared__ float dynamic[];
  __shared__ Shared<kHeads> s;
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32, W = p.width(), L = p.L;
  const int64_t i = blockIdx.x, t = p.first + i;
  const int h0 = static_cast<int>(blockIdx.y) * kHeads, heads = min(kHeads, p.H - h0);
  const int n = owner_of(p.seq, t);
  const bool live = n >= 0 && p.w.sound[n] != 0;
  if (blockIdx.y == 0 && tid == 0) p.w.live[i] = live ? 1 : 0;
  if (!live) return;
  const int length = p.seq.context[n] + static_cast<int>(t) - p.seq.begin(n) + 1;
  float *query = dynamic, *sums = dynamic + kHeads * W;
  for (int l = tid; l < heads * W; l += kThreads) query[l] = p.query(i, h0)[l];
  for (int l = tid; l < kHeads * L; l += kThreads) sums[l] = 0;
  if (tid < kHeads) s.max[tid] = -INFINITY, s.sum[tid] = 0;
  for (int s0 = 0; s0 < length; s0 += kPositions) {
    const int here = min(kPositions, length - s0);
    __syncthreads();
    if (tid < here) s.row[tid] = p.seq.row(n, s0 + tid) * W;
    __syncthreads();
    for (int j = warp; j < kPositions; j += kWarps) {
      float dot[kHeads] = {};
      if (j < here) {
        const C* row = cache + s.row[j];
        for (int l = lane; l < W; l += 32) {
          const float c = to_f32(row[l]);
#pragma unroll
          for (int h = 0; h < kHeads; ++h)
            if (h < heads) dot[h] = fmaf(query[h * W + l], c, dot[h]);
        }
      }
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        dot[h] = warp_sum(dot[h]);
        if (lane == h) s.p[h][j] = j < here ? dot[h] : -INFINITY;
      }
    }
    __syncthreads();
    if (warp < heads) {
      const float score = s.p[warp][lane], before = s.max[warp];
      const float most = fmaxf(before, warp_max(score));
      const float e = lane < here ? expf(score - most) : 0.0f, total = warp_sum(e);
      s.p[warp][lane] = e;
      if (lane == 0) {
        s.factor[warp] = expf(before - most);
        s.sum[warp] = s.sum[warp] * s.factor[warp] + total;
        s.max[warp] = most;
      }
    }
    __syncthreads();
    for (int l = tid; l < L; l += kThreads) {
      float a[kHeads];
#pragma unroll
      for (int h = 0; h < kHeads; ++h) a[h] = h < heads ? sums[h * L + l] * s.factor[h] : 0.0f;
#pragma unroll 8
      for (int j = 0; j < here; ++j) {
        const float c = to_f32(cache[s.row[j] + l]);
#pragma unroll
        for (int h = 0; h < kHeads; ++h) a[h] = fmaf(s.p[h][j], c, a[h]);
      }
#pragma unroll
      for (int h = 0; h < kHeads; ++h)
        if (h < heads) sums[h * L + l] = a[h];
    }
  }
  __syncthreads();
  for (int l = tid; l < heads * L; l += kThreads) p.sums(i, h0)[l] = sums[l] / s.sum[l / L];
}

// A warp owns a value of kTogether tokens.
template <class X, class W>
__global__ void __launch_bounds__(kThreads)
    project(const __grid_constant__ Params p, HeadRows<X> out, const __grid_constant__ W weight) {
  const int h = static_cast<int>(blockIdx.y), lane = static_cast<int>(threadIdx.x) % 32;
  const int v = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  if (v >= p.V) return;
  const int64_t i0 = int64_t{blockIdx.z} * kTogether;
  const int count = static_cast<int>(min(int64_t{kTogether}, p.rows - i0));
  float sum[kTogether] = {};
  for (int l = lane; l < p.L; l += 32) {
    const float x = weight.at(int64_t{h} * (p.N + p.V) + p.N + v, l);
#pragma unroll
    for (int i = 0; i < kTogether; ++i)
      if (i < count) sum[i] = fmaf(x, p.sums(i0 + i, h)[l], sum[i]);
  }
#pragma unroll
  for (int i = 0; i < kTogether; ++i) {
    sum[i] = warp_sum(sum[i]);
    if (i < count && lane == i) out.at(p.first + i0 + i, h)[v] = from_f32<X>(p.w.live[i0 + i] != 0 ? sum[i] : 0.0f);
  }
}

template <class X, class C, class W>
void run_batch(const Exec& ex, const MlaArgs& a, const Params& p, const W& weight) {
  const auto grid = [&](int columns) {
    return dim3(static_cast<unsigned>(columns), static_cast<unsigned>(p.H), grid_of(p.rows, kTogether));
  };
  launch(ex, "mla", {.grid = grid((p.L + p.R + kThreads - 1) / kThreads), .block = kThreads}, absorb<X, W>, p,
         head_rows<const X>(a.q), weight);
  const auto attend_with = [&](auto heads) {
    constexpr int kHeads = heads();
    const Launch l{.grid = dim3(static_cast<unsigned>(p.rows), grid_of(p.H, kHeads)),
                   .block = kThreads,
                   .shared_bytes = static_cast<int>(portable_shared_bytes(kHeads, p.L, p.R))};
    launch(ex, "mla", l, attend<kHeads, C>, p, static_cast<const C*>(a.cache.data));
  };
  if (portable_heads(p.L, p.R) == 4)
    attend_with(std::integral_constant<int, 4>{});
  else
    attend_with(std::integral_constant<int, 1>{});
  launch(ex, "mla", {.grid = grid((p.V + kWarps - 1) / kWarps), .block = kThreads}, project<X, W>, p,
         head_rows<X>(a.out), weight);
}

}  // namespace

void mla_cuda_portable(const Exec& ex, const MlaArgs& a, const MlaDesc& d, void* scratch) {
  Params p{.seq = paged_arrays(a.seq, d.tokens, a.cache.shape),
           .H = static_cast<int>(d.heads),
           .N = static_cast<int>(d.nope),
           .R = static_cast<int>(d.rope),
           .V = static_cast<int>(d.value),
           .L = static_cast<int>(d.latent),
           .scale = a.scale,
           .w = portable_work(d, scratch),
           .faults = ex.faults};
  launch(ex, "mla", {.grid = static_cast<unsigned>(p.seq.count), .block = kThreads}, check_rows, p);
  for (p.first = 0; p.first < d.tokens; p.first += p.w.batch) {
    p.rows = std::min(p.w.batch, d.tokens - p.first);
    dispatch_activation(a.q.dtype, [&](auto x) {
      dispatch_activation(a.cache.dtype, [&](auto c) {
        dispatch_weight(a.kv_b, [&](const auto& weight) { run_batch<decltype(x), decltype(c)>(ex, a, p, weight); });
      });
    });
  }
}

}  // namespace kdelta
