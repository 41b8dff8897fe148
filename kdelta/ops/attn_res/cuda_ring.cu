// attn_res on CUDA with the streams of a token in registers: cuda_ring and cuda_cluster (see attn_res.cu).
#include "kdelta/ops/attn_res/cuda_params.cuh"
#include "kdelta/ops/common/cuda/async.cuh"
#include "kdelta/ops/common/cuda/launch.cuh"
#include "kdelta/ops/common/cuda/row.cuh"

namespace kdelta {
namespace {

using namespace cuda;
using Params = AttnResParams<bf16>;

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

template <int kStreams>
constexpr int kSums = (2 * kStreams + 3) / 4 * 4;  // of a warp

// A chunk of the running sum takes up its addend, and is stored as it will be read.
__device__ __forceinline__ void add_chunk(RawChunk<true, bf16>& sum, const RawChunk<true, bf16>& addend, bf16* to) {
  float x[kChunk], y[kChunk];
  sum.unpack(x), addend.unpack(y);
#pragma unroll
  for (int i = 0; i < kChunk; ++i) x[i] += y[i];
  store<true>(reinterpret_cast<bf16*>(sum.word), x);
  sum.store(to, kChunk);
}

// A token whose streams lie in the registers of kRingWarps warps: scores, mixture, norm. Team: put and put_square
// publish sums of a warp, meet() makes them everybody's.
template <int kStreams, class Team>
__device__ __forceinline__ void finish_token(const Params& p, int64_t t, int thread,
                                             RawChunk<true, bf16> (&raw)[kStreams][kRingChunks], const Team& team) {
  const int lane = thread % 32;
  float probability = 1;  // of stream `lane`
  if constexpr (kStreams > 1) {
    float weight[kRingChunks][kChunk];
    team.weights(weight);
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
      team.put(2 * first + lane / 8 % 2 + 2 * (lane / 16), four_sums(sums, lane));
    }
    team.meet();
    float score = -INFINITY;
    if (lane < kStreams) {
      float dot = 0, square = 0;
#pragma unroll
      for (int w = 0; w < kRingWarps; ++w) dot += team.partial[w][2 * lane], square += team.partial[w][2 * lane + 1];
      score = dot / sqrtf(square / static_cast<float>(p.D) + p.eps);
    }
    const float top = warp_max(score);  // every lane takes part
    const float e = lane < kStreams ? expf(score - top) : 0.0f;
    probability = e / warp_sum(e);
  }
  // Hides that the streams were widened before: kept in fp32 from there to here they would not fit the registers.
#pragma unroll
  for (int s = 0; s < kStreams; ++s)
#pragma unroll
    for (int c = 0; c < kRingChunks; ++c) {
      uint4& x = raw[s][c].word[0];
      asm volatile("" : "+r"(x.x), "+r"(x.y), "+r"(x.z), "+r"(x.w));
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
    team.put_square(warp_sum(square));
    team.meet();
    float total = 0;
#pragma unroll
    for (int w = 0; w < kRingWarps; ++w) total += team.squares[w];
    scale = rsqrtf(total / static_cast<float>(p.D) + p.norm_eps);
  }
  bf16* out = p.out.at(t);
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

template <int kStreams>
struct BlockTeam {
  float (*partial)[kSums<kStreams>];
  float* squares;
  const float4* own_weights;
  int lane, warp;

  __device__ __forceinline__ void weights(float (&weight)[kRingChunks][kChunk]) const {
#pragma unroll
    for (int c = 0; c < kRingChunks; ++c) {
      const float4 low = own_weights[2 * c * kRingThreads], high = own_weights[(2 * c + 1) * kRingThreads];
      weight[c][0] = low.x, weight[c][1] = low.y, weight[c][2] = low.z, weight[c][3] = low.w;
      weight[c][4] = high.x, weight[c][5] = high.y, weight[c][6] = high.z, weight[c][7] = high.w;
    }
  }
  // Every eighth of the warp has a sum of its own; `at` is its place.
  __device__ __forceinline__ void put(int at, float sum) const {
    if (lane % 8 == 0) partial[warp][at] = sum;
  }
  __device__ __forceinline__ void put_square(float sum) const {
    if (lane == 0) squares[warp] = sum;
  }
  __device__ __forceinline__ void meet() const {
    ring_barrier();
  }
};

// The streams of a token stay in registers between their scores and their mixture, so a row's place in the ring is free
// as soon as it has been read once. Sums of two tokens are apart, so that one barrier a token orders them.
template <int kStreams>
__global__ void __launch_bounds__(kRingThreads + 32, 1) attn_res_ring(const __grid_constant__ Params p, int slots) {
  extern __shared__ __align__(128) uint8_t ring[];
  __shared__ float partial[2][kRingWarps][kSums<kStreams>], squares[2][kRingWarps];
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
    int slot = 0;
    uint32_t parity = 1;  // of the round before; nobody waits in the first
    const int rows = kStreams + (p.adds ? 1 : 0);
    for (int k = 0; k < mine; ++k)
#pragma unroll 1
      for (int s = 0; s < rows; ++s) {
        const int64_t t = blockIdx.x + int64_t{k} * gridDim.x;
        barrier_wait(done + slot, parity);
        barrier_expect(full + slot, row_bytes);
        bulk_load(ring + static_cast<int64_t>(slot) * row_bytes, s < kStreams ? p.stream(s, t) : p.addend.at(t),
                  row_bytes, full + slot);
        if (++slot == slots) slot = 0, parity ^= 1;
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
  const auto take_row = [&](RawChunk<true, bf16>(&to)[kRingChunks]) {
    barrier_wait(full + slot, phase);
    const auto* row = reinterpret_cast<const bf16*>(ring + static_cast<int64_t>(slot) * row_bytes);
#pragma unroll
    for (int c = 0; c < kRingChunks; ++c) {
      const int64_t d = (int64_t{c} * kRingThreads + thread) * kChunk;
      to[c].word[0] = make_uint4(0, 0, 0, 0);
      if (d < p.D) to[c].load(row + d, kChunk);
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(done + slot);  // the next row may come to this place while the token is worked on
    if (++slot == slots) slot = 0, phase ^= 1;
  };
  for (int k = 0; k < mine; ++k) {
    const int64_t t = blockIdx.x + int64_t{k} * gridDim.x;
    RawChunk<true, bf16> raw[kStreams][kRingChunks];
#pragma unroll
    for (int s = 0; s < kStreams; ++s) take_row(raw[s]);
    if (p.adds) {
      RawChunk<true, bf16> addend[kRingChunks];
      take_row(addend);
#pragma unroll
      for (int c = 0; c < kRingChunks; ++c) {
        const int64_t d = (int64_t{c} * kRingThreads + thread) * kChunk;
        if (d < p.D) add_chunk(raw[kStreams - 1][c], addend[c], p.sum_out.at(t) + d);
      }
    }
    BlockTeam<kStreams> team{partial[k & 1], squares[k & 1], weights, lane, warp};
    finish_token<kStreams>(p, t, thread, raw, team);
  }
}

constexpr int kClusterBlocks = 8, kClusterThreads = 64;
static_assert(kRingThreads <= kClusterBlocks * kClusterThreads);

__device__ __forceinline__ void arrive_at_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void wait_for_cluster() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

template <int kStreams>
struct ClusterTeam {
  float (*partial)[kSums<kStreams>];
  float* squares;
  const float* score_weight;
  int64_t D;
  int thread;
  bool idle;  // of no warp of the ring

  // The lane's place in the shared memory of block lane % 8.
  __device__ __forceinline__ void put_in_all(float* place, float x) const {
    if (idle) return;
    uint32_t at;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(shared_address(place)), "r"(thread % 8));
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(at), "f"(x) : "memory");
  }
  __device__ __forceinline__ void weights(float (&weight)[kRingChunks][kChunk]) const {
#pragma unroll
    for (int c = 0; c < kRingChunks; ++c) {
      const int64_t d = (int64_t{c} * kRingThreads + thread) * kChunk;
#pragma unroll
      for (int i = 0; i < kChunk; ++i) weight[c][i] = 0;
      if (!idle && d < D) load<true>(score_weight + d, weight[c]);
    }
  }
  __device__ __forceinline__ void put(int at, float sum) const {
    put_in_all(&partial[thread / 32][at], sum);
  }
  __device__ __forceinline__ void put_square(float sum) const {
    if (thread % 32 < 8) put_in_all(squares + thread / 32, sum);
  }
  __device__ __forceinline__ void meet() const {
    arrive_at_cluster(), wait_for_cluster();
  }
};

template <int kStreams>
__global__ void __launch_bounds__(kClusterThreads) attn_res_cluster(const __grid_constant__ Params p) {
  __shared__ float partial[kRingWarps][kSums<kStreams>], squares[kRingWarps];
  const int thread = static_cast<int>(blockIdx.x) % kClusterBlocks * kClusterThreads + static_cast<int>(threadIdx.x);
  const int64_t t = blockIdx.x / kClusterBlocks;
  arrive_at_cluster();
  pdl_trigger();
  pdl_wait();
  const bool idle = thread >= kRingThreads;
  RawChunk<true, bf16> raw[kStreams][kRingChunks];
#pragma unroll
  for (int s = 0; s < kStreams; ++s)
#pragma unroll
    for (int c = 0; c < kRingChunks; ++c) {
      const int64_t d = (int64_t{c} * kRingThreads + thread) * kChunk;
      raw[s][c].word[0] = make_uint4(0, 0, 0, 0);
      if (!idle && d < p.D) raw[s][c].load(p.stream(s, t) + d, kChunk);
    }
  if (p.adds) {
#pragma unroll
    for (int c = 0; c < kRingChunks; ++c) {
      const int64_t d = (int64_t{c} * kRingThreads + thread) * kChunk;
      RawChunk<true, bf16> addend;
      if (idle || d >= p.D) continue;
      addend.load(p.addend.at(t) + d, kChunk);
      add_chunk(raw[kStreams - 1][c], addend, p.sum_out.at(t) + d);
    }
  }
  wait_for_cluster();  // all its blocks run, so their shared memory is there
  ClusterTeam<kStreams> team{partial, squares, p.score_weight, p.D, thread, idle};
  finish_token<kStreams>(p, t, thread, raw, team);
}

#else
template <int kStreams>
__global__ void attn_res_ring(const __grid_constant__ Params p, int slots) {}
template <int kStreams>
__global__ void attn_res_cluster(const __grid_constant__ Params p) {}
constexpr int kClusterBlocks = 8, kClusterThreads = 64;
#endif

// f(streams) as an integral constant.
template <class F, int... kLess>
void dispatch_streams(int64_t streams, F&& f, std::integer_sequence<int, kLess...>) {
  (void)((streams == kLess + 1 && (f(std::integral_constant<int, kLess + 1>{}), true)) || ...);
}

}  // namespace

void attn_res_cuda_ring(const Exec& ex, const AttnResArgs& a, const AttnResDesc& d, void*) {
  const int slots = static_cast<int>(attn_res_ring_slots(d));
  const unsigned grid = grid_of(d.rows, 1, d.target.multiprocessors);
  const Launch l{.grid = grid,
                 .block = kRingThreads + 32,
                 .shared_bytes = static_cast<int>(slots * d.width * 2 + kRingThreads * kRingChunks * kChunk * 4),
                 .pdl = pdl_pays(d.target, grid)};
  dispatch_streams(
      a.n + 1,
      [&](auto streams) { launch(ex, "attn_res", l, attn_res_ring<streams()>, attn_res_params<bf16>(a), slots); },
      std::make_integer_sequence<int, 9>{});
}

void attn_res_cuda_cluster(const Exec& ex, const AttnResArgs& a, const AttnResDesc& d, void*) {
  const auto grid = static_cast<unsigned>(d.rows * kClusterBlocks);
  const Launch l{.grid = grid, .block = kClusterThreads, .cluster = kClusterBlocks, .pdl = pdl_pays(d.target, grid)};
  dispatch_streams(
      a.n + 1, [&](auto streams) { launch(ex, "attn_res", l, attn_res_cluster<streams()>, attn_res_params<bf16>(a)); },
      std::make_integer_sequence<int, 9>{});
}

}  // namespace kdelta
