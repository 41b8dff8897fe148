// grouped_linear on CUDA for few pairs an expert, where reading the experts' weights is all there is to do. A block has
// up to 16 pairs of one expert in shared memory and streams weight rows past them: each warp one half of the columns of
// 16 or 32 rows, several loads ahead, on tensor cores (common/cuda/weight_fragments.cuh). With gate and up projections
// one half of the warps has rows of the one, the other half the same rows of the other.
//
// The order of a sum: in either half of the columns 16 at a time, as a quad of lanes loads them; then the halves. It
// depends on the columns and the weights' format alone.
#include "kdelta/ops/common/cuda/launch.cuh"
#include "kdelta/ops/common/cuda/views.cuh"
#include "kdelta/ops/common/cuda/weight_fragments.cuh"
#include "kdelta/ops/grouped_linear/cuda_gate.cuh"
#include "kdelta/ops/grouped_linear/cuda_routing.cuh"

namespace kdelta {
namespace {

using namespace cuda;
using namespace grouped;
constexpr int kHalves = 2;  // of the columns, each a warp's

// Weights pass by L1, which keeps scales.
__device__ __forceinline__ uint4 read_once(const uint8_t* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p)
               : "memory");
  return v;
}

struct Params {
  Experts experts, up;
  Routing routing;
  Rows<const bf16> x;
  ProjectionOut out;
  int64_t N;
  int K;
  float beta, linear_beta;
  bool settled;  // the routing is older than the kernel in front
};
// How a format's rows are streamed. A step is 64 bytes of each row.
template <DType kFormat, int kPairs8>
struct Form {
  static constexpr int kTiles = kFormat == DType::bf16 ? 1 : 2;  // of 16 rows a warp
  static constexpr int kWarps = kFormat == DType::bf16 || kPairs8 == 2 ? 8 : 4;
  // Blocks of a multiprocessor, at least, and steps in flight. In bf16 the 288 blocks of eight pairs' 2304 outputs find
  // a place at once.
  static constexpr int kBlocks = kFormat == DType::bf16 ? (kPairs8 == 1 ? 3 : 2) : kWarps == 8 ? 1 : 3;
  static constexpr int kAhead = kFormat == DType::bf16 ? (kPairs8 == 1 ? 4 : 6) : kFormat == DType::f4_e2m1 ? 2 : 3;
  static constexpr int kColumns = WeightFormat<kFormat>::kColumns;   // of a lane
  static constexpr int kStep = 4 * kColumns, kWords = kColumns / 8;  // 16-byte words of x a lane needs for a step
  static constexpr int kRows = kWarps / kHalves * kTiles * 16;
  static constexpr int kSums = kTiles * kPairs8 * 4 + 1;  // floats of a lane, and one against bank conflicts
  // x, and afterwards the sums of the second halves.
  static int shared_bytes(int64_t K) {
    return static_cast<int>(std::max<int64_t>(K * 16 * kPairs8, kWarps / kHalves * 32 * kSums * 4));
  }
};

// x of the tile, in the order in which lanes want it: word (step, group of eight pairs, i, lane). Few pairs are copied
// by several warps each. Pairs that the tile does not have stay whatever they are: an output sees its own pair alone.
template <DType kFormat, int kPairs8>
__device__ __forceinline__ void stage_inputs(const Params& p, const int64_t* row, int count, uint4* to) {
  using F = Form<kFormat, kPairs8>;
  constexpr int kTogether = F::kBlocks == 3 && kFormat == DType::bf16 ? 3 : 8;  // as registers allow
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32, words = p.K / 8;
  const int share = max(1, F::kWarps / count), stride = 32 * share;  // warps of a pair; their words at once
  for (int pair = warp / share; pair < count; pair += F::kWarps / share) {
    if (row[pair] < 0) continue;
    const bf16* x = p.x.at(row[pair]);
    for (int first = lane + warp % share * 32; first < words; first += stride * kTogether) {
      uint4 v[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i)
        if (first + stride * i < words) v[i] = load_cached16(x + (first + stride * i) * 8);
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const int c = first + stride * i, step = c / (4 * F::kWords), q = c / F::kWords % 4, word = c % F::kWords;
        if (c >= words) break;
        uint32_t w[4];
        match_order<kFormat>(v[i], w);
        to[((step * kPairs8 + pair / 8) * F::kWords + word) * 32 + pair % 8 * 4 + q] =
            make_uint4(w[0], w[1], w[2], w[3]);
      }
    }
  }
}

template <DType kFormat, class F>
struct Stream {
  const uint8_t* row[F::kTiles][2];
  const uint8_t* scale[F::kTiles][2];
  uint4 raw[F::kAhead][F::kTiles][2];
  uint32_t factor[F::kAhead][F::kTiles][2];

  __device__ __forceinline__ Stream(const Expert& e, int64_t n0, int64_t N) {
    const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, q = lane % 4;
#pragma unroll
    for (int t = 0; t < F::kTiles; ++t)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int64_t n = min(n0 + 16 * t + 8 * h + g, N - 1);
        row[t][h] = e.data + n * e.row_bytes + 16 * q;
        if constexpr (kFormat != DType::bf16)
          scale[t][h] = e.scale + n * e.scale_row_bytes + q * F::kColumns / kMxBlock;
      }
  }
  __device__ __forceinline__ void load(int slot, int step) {
#pragma unroll
    for (int t = 0; t < F::kTiles; ++t)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        raw[slot][t][h] = read_once(row[t][h] + step * 64);
        if constexpr (kFormat != DType::bf16)
          factor[slot][t][h] = load_cached_byte(scale[t][h] + step * (F::kStep / kMxBlock));
      }
  }
  __device__ __forceinline__ bool special(int slot) const {
    bool any = false;
#pragma unroll
    for (int t = 0; t < F::kTiles; ++t)
#pragma unroll
      for (int h = 0; h < 2; ++h) any = any || WeightFormat<kFormat>::special(raw[slot][t][h], factor[slot][t][h]);
    return any;
  }
};

// One step's products; with kSlow by the way that takes every code and scale.
template <bool kSlow, DType kFormat, int kPairs8, class F>
__device__ __forceinline__ void multiply(const Stream<kFormat, F>& weights, int slot, const uint4* inputs,
                                         float (&sum)[F::kTiles][kPairs8][4]) {
#pragma unroll
  for (int w = 0; w < F::kWords; ++w) {
    uint32_t a[F::kTiles][2][4];
#pragma unroll
    for (int t = 0; t < F::kTiles; ++t)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        WeightFormat<kFormat>::template unpack<kSlow>(weights.raw[slot][t][h], w, weights.factor[slot][t][h], a[t][h]);
#pragma unroll
    for (int j = 0; j < kPairs8; ++j) {
      const uint4 x = inputs[(j * F::kWords + w) * 32];
#pragma unroll
      for (int t = 0; t < F::kTiles; ++t) {
        mma_bf16(sum[t][j], a[t][0][0], a[t][1][0], a[t][0][1], a[t][1][1], x.x, x.y);
        mma_bf16(sum[t][j], a[t][0][2], a[t][1][2], a[t][0][3], a[t][1][3], x.z, x.w);
      }
    }
  }
}

template <DType kFormat, int kPairs8, Gate kGate>
__global__ void __launch_bounds__(Form<kFormat, kPairs8>::kWarps * 32, Form<kFormat, kPairs8>::kBlocks)
    stream_weights(const __grid_constant__ Params p) {
  using F = Form<kFormat, kPairs8>;
  constexpr bool kGated = kGate != Gate::none;
  constexpr int kPairs = 8 * kPairs8, kThreads = F::kWarps * 32, kRows = F::kRows / (kGated ? 2 : 1);
  extern __shared__ __align__(16) uint4 inputs[];
  __shared__ int64_t row[kPairs];
  // The trigger comes behind the wait: when the next kernel begins, all in front of this one is there for it.
  if (!p.settled) {
    pdl_wait();
    pdl_trigger();
  }
  const Tile tile = find_tile<kPairs>(p.routing, blockIdx.x);
  const auto wait_if_settled = [&] {
    if (!p.settled) return;
    pdl_wait();
    pdl_trigger();
  };
  if (tile.expert < 0) return wait_if_settled();
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, g = lane / 4, q = lane % 4;
  if (tile.expert == p.routing.E) {
    wait_if_settled();
    for (int at = thread; at < tile.count * kRows; at += kThreads) {
      const int64_t n = int64_t{blockIdx.y} * kRows + at % kRows;
      if (n < p.N) p.out.put(tile.first + at / kRows, n, 0);
    }
    return;
  }
  const int half = thread / (kThreads / kHalves), place = thread % (kThreads / kHalves);
  // Of the up projection are the warps behind the first kRows rows.
  const bool up = kGated && place / 32 * (16 * F::kTiles) >= kRows;
  const int64_t n0 = int64_t{blockIdx.y} * kRows + place / 32 * (16 * F::kTiles) % kRows;
  Stream<kFormat, F> weights((up ? p.up : p.experts).at(tile.expert), n0, p.N);
  const int all = p.K / F::kStep, begin = half == 0 ? 0 : (all + 1) / 2, end = half == 0 ? (all + 1) / 2 : all;
#pragma unroll
  for (int i = 0; i < F::kAhead; ++i)
    if (begin + i < end) weights.load(i, begin + i);
  wait_if_settled();
  if (thread < kPairs) row[thread] = thread < tile.count ? row_of(p.routing, tile.first + thread) : -1;
  __syncthreads();
  stage_inputs<kFormat, kPairs8>(p, row, tile.count, inputs);
  __syncthreads();

  float sum[F::kTiles][kPairs8][4] = {};
  for (int first = begin; first < end; first += F::kAhead) {
#pragma unroll
    for (int i = 0; i < F::kAhead; ++i) {
      const int step = first + i;
      if (step >= end) break;
      const uint4* x = inputs + step * (kPairs8 * F::kWords * 32) + lane;
      if (kFormat != DType::bf16 && __any_sync(0xffffffffu, weights.special(i)))
        multiply<true, kFormat, kPairs8, F>(weights, i, x, sum);
      else
        multiply<false, kFormat, kPairs8, F>(weights, i, x, sum);
      if (step + F::kAhead < end) weights.load(i, step + F::kAhead);
    }
  }
  __syncthreads();
  float* second = reinterpret_cast<float*>(inputs) + place * F::kSums;
  if (half == 1) {
#pragma unroll
    for (int t = 0; t < F::kTiles; ++t)
#pragma unroll
      for (int j = 0; j < kPairs8; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) second[(t * kPairs8 + j) * 4 + i] = sum[t][j][i];
  }
  __syncthreads();
  const auto each = [&](auto&& f) {
#pragma unroll
    for (int t = 0; t < F::kTiles; ++t)
#pragma unroll
      for (int j = 0; j < kPairs8; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          f(sum[t][j][i], (t * kPairs8 + j) * 4 + i, 8 * j + 2 * q + i % 2, 16 * t + i / 2 * 8 + g);
  };
  if (half == 0) each([&](float& total, int at, int, int) { total += second[at]; });
  if constexpr (kGated) {
    if (half == 0 && up) each([&](float total, int at, int, int) { second[at] = total; });
    __syncthreads();
    if (up) return;
    const float* other = second + kThreads / kHalves / 2 * F::kSums;
    if (half == 0)
      each([&](float& total, int at, int, int) { total = gate_of<kGate>(total, other[at], p.beta, p.linear_beta); });
  }
  if (half == 1) return;
  each([&](float total, int, int pair, int n) {
    if (pair < tile.count && n0 + n < p.N) p.out.put(tile.first + pair, n0 + n, row[pair] >= 0 ? total : 0.0f);
  });
}

template <DType kFormat, int kPairs8, Gate kGate>
void run(const Exec& ex, const GroupedLinearArgs& a, const GroupedLinearDesc& d, void* scratch) {
  using F = Form<kFormat, kPairs8>;
  constexpr bool kGated = kGate != Gate::none;
  Params p{.experts = experts_of(ex, a.w, scratch),
           .up = kGated ? experts_of(ex, a.up_w, static_cast<char*>(scratch) + grouped::table_bytes(d.E)) : Experts{},
           .routing = routing_of(ex, a, d, 8 * kPairs8),
           .x = rows<const bf16>(a.x),
           .out = projection_out(a.out, {}),
           .N = d.N,
           .K = static_cast<int>(d.K),
           .beta = a.beta,
           .linear_beta = a.linear_beta};
  p.settled = a.routing_settled && p.experts.table == nullptr;
  const dim3 grid(static_cast<unsigned>(slots_of(d.P, d.E, 8 * kPairs8).count),
                  grid_of(d.N, F::kRows / (kGated ? 2 : 1)));
  const Launch l{.grid = grid,
                 .block = F::kWarps * 32,
                 .shared_bytes = F::shared_bytes(d.K),
                 .pdl = pdl_pays(d.target, int64_t{grid.x} * grid.y / 3)};
  launch(ex, "grouped_linear", l, stream_weights<kFormat, kPairs8, kGate>, p);
}

}  // namespace

void grouped_linear_cuda_stream(const Exec& ex, const GroupedLinearArgs& a, const GroupedLinearDesc& d, void* scratch) {
  if (d.P == 0 || d.N == 0) return;
  dispatch_weights(d.w, [&](auto format) {
    if constexpr (format() != DType::f32) {
      dispatch_gate(a, [&](auto gate) {
        if (grouped::stream_pairs(d) == 8)
          run<format(), 1, gate()>(ex, a, d, scratch);
        else
          run<format(), 2, gate()>(ex, a, d, scratch);
      });
    }
  });
}

}  // namespace kdelta
