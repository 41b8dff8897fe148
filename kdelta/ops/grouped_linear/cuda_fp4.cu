// grouped_linear on CUDA for MXFP4 weights and few pairs an expert: as cuda_stream, with the same sums, but weights on
// their way lie in shared memory instead of registers. Twice as many warps then take turns at unpacking them, which is
// most of the work, and a block goes through several tiles of rows with the same pairs, its copies running ahead across
// them.
#include "kdelta/ops/common/cuda/async.cuh"
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
using Codes = WeightFormat<DType::f4_e2m1>;
constexpr int kWords = Codes::kColumns / 8, kStep = 4 * Codes::kColumns;  // of 64 bytes of a row: columns

struct Params {
  Experts experts, up;
  Routing routing;
  Rows<const bf16> x;
  ProjectionOut out;
  int64_t N;
  int K;
  int tiles;  // of rows, that a block does
  float beta, linear_beta;
  bool settled;  // the routing is older than the kernel in front
};

template <int kPairs_, int kTiles_>
struct Form {
  static constexpr int kPairs = kPairs_, kPairs8 = (kPairs + 7) / 8;
  // Of a warp at once: 32 rows x 128 columns or, where blocks are to be small, 16 x 256.
  static constexpr int kTiles = kTiles_, kSteps = 2 / kTiles;
  static constexpr int kWarps = kPairs == 4 ? 4 : kPairs == 8 ? 8 : 12;
  static constexpr int kBlocks = kPairs == 4 ? 4 : kPairs == 8 ? 2 : 1;  // of a multiprocessor
  static constexpr int kThreads = kWarps * 32, kRows = kWarps / kHalves * kTiles * 16;
  // A warp's stages: codes in the order of lanes, then the four scales of each row and step.
  static constexpr int kDepth = 3, kCodeBytes = 2048, kStageBytes = kCodeBytes + 128;
  static constexpr int kRingBytes = kWarps * kDepth * kStageBytes;
  static constexpr int kSums = kTiles * kPairs8 * 4 + 1;  // floats of a lane, and one against bank conflicts
  static int input_bytes(int64_t K) { return static_cast<int>(K * 2 * kPairs); }
  static int shared_bytes(int64_t K) { return input_bytes(K) + kRingBytes + kThreads / kHalves * kSums * 4; }
};

// x of the tile, in the order in which lanes want it: word (step, group of eight pairs, i, lane); with four pairs half
// the lanes read what the others do. Few pairs are copied by several warps each. Pairs that the tile does not have stay
// whatever they are: an output sees its own pair alone.
template <class F>
__device__ __forceinline__ void stage_inputs(const Params& p, const int64_t* row, int count, uint4* to) {
  constexpr int kTogether = 8, kWordPairs = F::kPairs / F::kPairs8;
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
        const int c = first + stride * i, step = c / (4 * kWords), q = c / kWords % 4, word = c % kWords;
        if (c >= words) break;
        uint32_t w[4];
        match_order<DType::f4_e2m1>(v[i], w);
        to[((step * F::kPairs8 + pair / kWordPairs) * kWords + word) * (kWordPairs * 4) + pair % kWordPairs * 4 + q] =
            make_uint4(w[0], w[1], w[2], w[3]);
      }
    }
  }
}

// Of the 512 bytes that the lanes read together, in a stage.
template <class F>
__device__ __forceinline__ constexpr int code_place(int step, int tile, int half) {
  return ((step * F::kTiles + tile) * 2 + half) * 512;
}

// A warp's copies: step by step, tile by tile, several steps ahead of the products.
template <class F>
class Copies {
 public:
  __device__ __forceinline__ Copies(const Expert& e, int64_t n0, int tiles, int64_t tile_rows, int64_t N, int begin,
                                    int end, uint32_t ring)
      : expert_(e), n_(n0), tile_rows_(tile_rows), N_(N), tiles_(tiles), begin_(begin), end_(end), ring_(ring) {
    if (begin == end) tiles_ = 0;
    open();
  }
  // The next steps into a stage; behind the last an empty group, so that waits can count.
  __device__ __forceinline__ void next(int slot) {
    if (tiles_ > 0) {
      const uint32_t to = ring_ + static_cast<uint32_t>(slot * F::kStageBytes);
#pragma unroll
      for (int s = 0; s < F::kSteps; ++s) {
        if (F::kSteps > 1 && step_ + s >= end_) break;
#pragma unroll
        for (int t = 0; t < F::kTiles; ++t)
#pragma unroll
          for (int h = 0; h < 2; ++h)
            copy16_of_line(to + code_place<F>(s, t, h) + lane_ * 16, row_[t][h] + (step_ + s) * 64);
      }
      if (step_ + lane_ / (16 * F::kTiles) < end_) copy4(to + F::kCodeBytes + lane_ * 4, scale_ + step_ * 4);
      step_ += F::kSteps;
      if (step_ >= end_) {
        n_ += tile_rows_;
        if (--tiles_ > 0) open();
      }
    }
    copies_commit();
  }

 private:
  __device__ __forceinline__ void open() {
    const int g = lane_ / 4, q = lane_ % 4;
#pragma unroll
    for (int t = 0; t < F::kTiles; ++t)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        row_[t][h] = expert_.data + min(n_ + 16 * t + 8 * h + g, N_ - 1) * expert_.row_bytes + 16 * q;
    scale_ = expert_.scale + min(n_ + lane_ % (16 * F::kTiles), N_ - 1) * expert_.scale_row_bytes +
             lane_ / (16 * F::kTiles) * 4;
    step_ = begin_;
  }

  const int lane_ = static_cast<int>(threadIdx.x) % 32;
  Expert expert_;
  int64_t n_, tile_rows_, N_;
  int tiles_, begin_, end_, step_ = 0;
  uint32_t ring_;
  const uint8_t* row_[F::kTiles][2];
  const uint8_t* scale_;
};

// One step's products; with kSlow by the way that takes every scale.
template <bool kSlow, class F>
__device__ __forceinline__ void multiply(const uint4 (&raw)[F::kTiles][2], const uint32_t (&scale)[F::kTiles][2],
                                         const uint4* inputs, float (&sum)[F::kTiles][F::kPairs8][4]) {
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
    uint32_t a[F::kTiles][2][4];
#pragma unroll
    for (int t = 0; t < F::kTiles; ++t)
#pragma unroll
      for (int h = 0; h < 2; ++h) Codes::unpack<kSlow>(raw[t][h], w, scale[t][h], a[t][h]);
#pragma unroll
    for (int j = 0; j < F::kPairs8; ++j) {
      const uint4 x = inputs[(j * kWords + w) * (F::kPairs / F::kPairs8 * 4)];
#pragma unroll
      for (int t = 0; t < F::kTiles; ++t) {
        mma_bf16(sum[t][j], a[t][0][0], a[t][1][0], a[t][0][1], a[t][1][1], x.x, x.y);
        mma_bf16(sum[t][j], a[t][0][2], a[t][1][2], a[t][0][3], a[t][1][3], x.z, x.w);
      }
    }
  }
}

template <class F, Gate kGate>
__global__ void __launch_bounds__(F::kThreads, F::kBlocks) multiply_codes(const __grid_constant__ Params p) {
  constexpr bool kGated = kGate != Gate::none;
  constexpr int kRows = F::kRows / (kGated ? 2 : 1);  // of a tile's outputs
  extern __shared__ __align__(16) uint4 inputs[];
  __shared__ int64_t row[F::kPairs];
  // The trigger comes behind the wait: when the next kernel begins, all in front of this one is there for it.
  if (!p.settled) {
    pdl_wait();
    pdl_trigger();
  }
  const Tile tile = find_tile<F::kPairs>(p.routing, blockIdx.x);
  const auto wait_if_settled = [&] {
    if (!p.settled) return;
    pdl_wait();
    pdl_trigger();
  };
  if (tile.expert < 0) return wait_if_settled();
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, g = lane / 4, q = lane % 4;
  const int64_t first_row = int64_t{blockIdx.y} * p.tiles * kRows;
  const int tiles = static_cast<int>(min(int64_t{p.tiles}, (p.N - first_row + kRows - 1) / kRows));
  if (tile.expert == p.routing.E) {
    wait_if_settled();
    for (int at = thread; at < tile.count * tiles * kRows; at += F::kThreads) {
      const int64_t n = first_row + at % (tiles * kRows);
      if (n < p.N) p.out.put(tile.first + at / (tiles * kRows), n, 0);
    }
    return;
  }
  const int half = thread / (F::kThreads / kHalves), place = thread % (F::kThreads / kHalves);
  // Of the up projection are the warps behind the first kRows rows.
  const bool up = kGated && place / 32 * (16 * F::kTiles) >= kRows;
  int64_t n0 = first_row + place / 32 * (16 * F::kTiles) % kRows;
  const int all = p.K / kStep, begin = half == 0 ? 0 : (all + 1) / 2, end = half == 0 ? (all + 1) / 2 : all;
  uint8_t* const rings = reinterpret_cast<uint8_t*>(inputs) + p.K * 2 * F::kPairs;
  const uint32_t ring = shared_address(rings) + thread / 32 * (F::kDepth * F::kStageBytes);
  Copies<F> copies((up ? p.up : p.experts).at(tile.expert), n0, tiles, kRows, p.N, begin, end, ring);
#pragma unroll
  for (int i = 0; i < F::kDepth - 1; ++i) copies.next(i);
  wait_if_settled();
  if (thread < F::kPairs) row[thread] = thread < tile.count ? row_of(p.routing, tile.first + thread) : -1;
  __syncthreads();
  stage_inputs<F>(p, row, tile.count, inputs);
  __syncthreads();

  float* const second = reinterpret_cast<float*>(rings + F::kRingBytes) + place * F::kSums;
  int slot = 0;
  for (int i = 0; i < tiles; ++i, n0 += kRows) {
    float sum[F::kTiles][F::kPairs8][4] = {};
    for (int first = begin; first < end; first += F::kSteps) {
      copies_wait<F::kDepth - 2>();
      __syncwarp();  // lanes read scales that others copied, and have read what is overwritten now
      copies.next(slot == 0 ? F::kDepth - 1 : slot - 1);
      const uint32_t from = ring + static_cast<uint32_t>(slot * F::kStageBytes);
      slot = slot + 1 == F::kDepth ? 0 : slot + 1;
      // One way for all steps of a stage. Behind the last is what an older stage left: no harm.
      uint32_t scale[F::kSteps][F::kTiles][2];
      bool special = false;
#pragma unroll
      for (int s = 0; s < F::kSteps; ++s)
#pragma unroll
        for (int t = 0; t < F::kTiles; ++t)
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            scale[s][t][h] = load_shared_byte(from + F::kCodeBytes + code_place<F>(s, t, h) / 16 + lane);
            special = special || scale[s][t][h] > Codes::kMostScale;
          }
      const auto multiply_steps = [&](auto slow) {
#pragma unroll
        for (int s = 0; s < F::kSteps; ++s) {
          if (F::kSteps > 1 && first + s >= end) break;
          uint4 raw[F::kTiles][2];
#pragma unroll
          for (int t = 0; t < F::kTiles; ++t)
#pragma unroll
            for (int h = 0; h < 2; ++h) raw[t][h] = load_shared16(from + code_place<F>(s, t, h) + lane * 16);
          const uint4* x = inputs + (first + s) * (F::kPairs * 4 * kWords) + lane % (F::kPairs / F::kPairs8 * 4);
          multiply<slow(), F>(raw, scale[s], x, sum);
        }
      };
      if (__any_sync(0xffffffffu, special))
        multiply_steps(std::true_type{});
      else
        multiply_steps(std::false_type{});
    }
    const auto each = [&](auto&& f) {
#pragma unroll
      for (int t = 0; t < F::kTiles; ++t)
#pragma unroll
        for (int j = 0; j < F::kPairs8; ++j)
#pragma unroll
          for (int c = 0; c < 4; ++c)
            f(sum[t][j][c], (t * F::kPairs8 + j) * 4 + c, 8 * j + 2 * q + c % 2, 16 * t + c / 2 * 8 + g);
    };
    __syncthreads();  // what the tile before left is read
    if (half == 1) each([&](float total, int at, int, int) { second[at] = total; });
    __syncthreads();
    if (half == 0) each([&](float& total, int at, int, int) { total += second[at]; });
    if constexpr (kGated) {
      if (half == 0 && up) each([&](float total, int at, int, int) { second[at] = total; });
      __syncthreads();
      const float* other = second + F::kThreads / kHalves / 2 * F::kSums;
      if (half == 0 && !up)
        each([&](float& total, int at, int, int) { total = gate_of<kGate>(total, other[at], p.beta, p.linear_beta); });
    }
    if (half == 1 || up) continue;
    each([&](float total, int, int pair, int n) {
      if (pair < tile.count && n0 + n < p.N) p.out.put(tile.first + pair, n0 + n, row[pair] >= 0 ? total : 0.0f);
    });
  }
}

template <class F, Gate kGate>
void run(const Exec& ex, const GroupedLinearArgs& a, const GroupedLinearDesc& d, void* scratch) {
  constexpr bool kGated = kGate != Gate::none;
  Params p{.experts = experts_of(ex, a.w, scratch),
           .up = kGated ? experts_of(ex, a.up_w, static_cast<char*>(scratch) + grouped::table_bytes(d.E)) : Experts{},
           .routing = routing_of(ex, a, d, F::kPairs),
           .x = rows<const bf16>(a.x),
           .out = projection_out(a.out, {}),
           .N = d.N,
           .K = static_cast<int>(d.K),
           .beta = a.beta,
           .linear_beta = a.linear_beta};
  p.settled = a.routing_settled && p.experts.table == nullptr;
  const int64_t slots = slots_of(d.P, d.E, F::kPairs).count, tiles = grid_of(d.N, F::kRows / (kGated ? 2 : 1));
  p.tiles = static_cast<int>(fp4_tiles(slots * tiles, int64_t{F::kBlocks} * d.target.multiprocessors));
  const dim3 grid(static_cast<unsigned>(slots), grid_of(tiles, p.tiles));
  const Launch l{.grid = grid,
                 .block = F::kThreads,
                 .shared_bytes = F::shared_bytes(d.K),
                 .pdl = pdl_pays(d.target, int64_t{grid.x} * grid.y / F::kBlocks)};
  launch(ex, "grouped_linear", l, multiply_codes<F, kGate>, p);
}

}  // namespace

void grouped_linear_cuda_fp4(const Exec& ex, const GroupedLinearArgs& a, const GroupedLinearDesc& d, void* scratch) {
  if (d.P == 0 || d.N == 0) return;
  dispatch_gate(a, [&](auto gate) {
    switch (grouped::fp4_pairs(d)) {
      case 4:
        // Small blocks while there is less than this for every place, so that all have as much to do.
        if (slots_of(d.P, d.E, 4).count * d.N * (gate() == Gate::none ? 1 : 2) < 256 * 4 * d.target.multiprocessors)
          return run<Form<4, 1>, gate()>(ex, a, d, scratch);
        return run<Form<4, 2>, gate()>(ex, a, d, scratch);
      case 8:
        return run<Form<8, 2>, gate()>(ex, a, d, scratch);
      default:
        return run<Form<16, 2>, gate()>(ex, a, d, scratch);
    }
  });
}

}  // namespace kdelta
