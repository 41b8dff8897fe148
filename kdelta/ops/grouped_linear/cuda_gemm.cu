// grouped_linear on Hopper for many pairs an expert: tiles of 128 weight rows x up to 256 pairs of one expert on wgmma
// (common/cuda/gemm_sm90.cuh).
//
// The tiles are listed by a kernel in front, so the grid has one block a multiprocessor and no idle slots. Where pairs
// name rows of x, a second one gathers them in the order of the pairs, for tensor copies to take; more pairs than
// scratch has room for go in rounds. A kernel behind writes zeros for pairs that no expert or no row of x serves.
#include "kdelta/ops/common/cuda/gemm_sm90.cuh"
#include "kdelta/ops/common/cuda/launch.cuh"
#include "kdelta/ops/common/cuda/views.cuh"
#include "kdelta/ops/grouped_linear/cuda_routing.cuh"

namespace kdelta {
namespace {

using namespace cuda;
using namespace grouped;
constexpr int kPlanThreads = 1024, kRestThreads = 256;
// Of a tile, at most. Codes need the registers that twice as many sums would take.
template <DType kFormat>
constexpr int kPairs = kFormat == DType::bf16 ? 256 : 128;

struct TileList {
  int4* tile;  // expert, first pair, pairs; by first pair
  int* round;  // [rounds + 1] the first tile of a round; behind the last the number of tiles
  int rounds;
};

// Lists the tiles. Under wrong boundaries there is none.
__global__ void __launch_bounds__(kPlanThreads) list_tiles(const __grid_constant__ Routing r, TileList list, int most) {
  __shared__ int warp_sum[kPlanThreads / 32];
  pdl_trigger();
  pdl_wait();
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  int base = 0, wrong = 0;
  for (int64_t first = 0; first < r.E; first += kPlanThreads) {
    const int64_t e = first + thread, begin = e < r.E ? r.begin[e] : 0, end = e < r.E ? r.begin[e + 1] : 0;
    wrong = __syncthreads_or(end < begin || (e == 0 && begin != 0) || begin < 0 || end > r.P);
    if (wrong != 0) break;  // nothing of it is listed: the list has room for ascending boundaries alone
    const int tiles = static_cast<int>((end - begin + most - 1) / most);
    int before = tiles;  // in this warp up to and with this expert, then without
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const int left = __shfl_up_sync(0xffffffffu, before, offset);
      if (lane >= offset) before += left;
    }
    if (lane == 31) warp_sum[thread / 32] = before;
    __syncthreads();
    int all = 0;
    before -= tiles;
    for (int w = 0; w < kPlanThreads / 32; ++w) {
      if (w < thread / 32) before += warp_sum[w];
      all += warp_sum[w];
    }
    __syncthreads();
    for (int t = 0; t < tiles; ++t) {
      const int64_t at = begin + int64_t{t} * most;
      list.tile[base + before + t] =
          make_int4(static_cast<int>(e), static_cast<int>(at), static_cast<int>(min(int64_t{most}, end - at)), 0);
    }
    base += all;
  }
  if (wrong != 0) base = 0;
  __syncthreads();
  for (int round = thread; round <= list.rounds; round += kPlanThreads) {
    int low = 0, high = base;  // tiles that begin in front of the round
    while (low < high) {
      const int middle = (low + high) / 2;
      if (list.tile[middle].y < round * kRoundPairs)
        low = middle + 1;
      else
        high = middle;
    }
    list.round[round] = low;
  }
  if (thread == 0 && wrong != 0) raise(r.faults, Fault::boundaries);
}

// Rows of x in the order of the pairs from `first` on, whole warps a row; zeros where there is no such row.
constexpr int kGatherThreads = 256;
__global__ void __launch_bounds__(kGatherThreads)
    gather_rows(const __grid_constant__ Routing r, TileList list, Rows<const bf16> x, bf16* to, int64_t first,
                int64_t count, int64_t K) {
  pdl_trigger();
  pdl_wait();
  if (list.round[0] == list.round[list.rounds]) return;  // none, or wrong boundaries
  const int64_t end = min(first + count, int64_t{r.begin[r.E]});
  const int lane = static_cast<int>(threadIdx.x) % 32, words = static_cast<int>(K / 8);
  for (int64_t p = first + (int64_t{blockIdx.x} * kGatherThreads + threadIdx.x) / 32; p < end;
       p += int64_t{gridDim.x} * (kGatherThreads / 32)) {
    const int64_t row = row_of(r, p);
    const auto* from = reinterpret_cast<const uint4*>(x.at(max(row, int64_t{0})));
    auto* out = reinterpret_cast<uint4*>(to + (p - first) * K);
#pragma unroll 4
    for (int i = lane; i < words; i += 32) out[i] = row >= 0 ? __ldg(from + i) : uint4{};
  }
}

// Two outputs of a pair, neighbours.
template <class Out, bool kWord>
struct PairSink {
  Out* to;
  int64_t stride;
  int left;  // pairs from the first output on
  __device__ __forceinline__ void put(int row, int pair, float a, float b) const {
    if (pair >= left) return;
    Out* at = to + pair * stride + row;
    if constexpr (kWord)
      *reinterpret_cast<uint32_t*>(at) = pack_bf16(a, b);
    else
      at[0] = from_f32<Out>(a), at[1] = from_f32<Out>(b);
  }
};

// Item i: a tile of weight rows, quickest, of a tile of pairs.
struct Gemm {
  static constexpr int kBoxTokens = 64;
  CUtensorMap weight_boxes;  // rows of all experts
  CUtensorMap pair_boxes;    // rows of x, a pair each, from first_pair on
  Experts experts;
  TileList list;
  ProjectionOut out;
  int64_t expert_rows;  // distance of two experts in rows
  int64_t N, K;
  int first_pair, round, rounds;  // this round, and how many
  int row_tiles, steps;
  bool words;  // outputs are written two at once

  struct Item {
    int first_step, steps, expert, pair, pairs, row;
  };
  __device__ __forceinline__ int items() const { return (list.round[round + rounds] - list.round[round]) * row_tiles; }
  __device__ __forceinline__ Item item(int i) const {
    const int4 tile = list.tile[list.round[round] + i / row_tiles];
    return {0, steps, tile.x, tile.y, tile.z, i % row_tiles * kGemmRows};
  }
  __device__ __forceinline__ int tokens(const Item& x) const { return x.pairs; }
  __device__ __forceinline__ const CUtensorMap& token_map() const { return pair_boxes; }
  __device__ __forceinline__ const CUtensorMap& weight_map(const Item&) const { return weight_boxes; }
  __device__ __forceinline__ int weight_row(const Item& x) const {
    return static_cast<int>(x.expert * expert_rows) + x.row;
  }
  __device__ __forceinline__ int token_row(const Item& x) const { return x.pair - first_pair; }
  __device__ __forceinline__ WeightRows weights(const Item& x) const {
    const Expert e = experts.at(x.expert);
    return {nullptr, e.scale + x.row * e.scale_row_bytes, e.row_bytes, e.scale_row_bytes, N - x.row};
  }
  __device__ __forceinline__ int64_t columns() const { return K; }
  template <class F>
  __device__ __forceinline__ void with_sink(const Item& x, int row, int pair, F&& f) const {
    const int64_t at = (int64_t{x.pair} + pair) * out.stride + x.row + row;
    const int left = x.pairs - pair;
    if (words) return f(PairSink<bf16, true>{static_cast<bf16*>(out.data) + at, out.stride, left});
    if (out.bf16) return f(PairSink<bf16, false>{static_cast<bf16*>(out.data) + at, out.stride, left});
    f(PairSink<float, false>{static_cast<float*>(out.data) + at, out.stride, left});
  }
};

// Zeros for pairs past the experts' (all of them when no tile was listed though there are experts' pairs: wrong
// boundaries), and for those whose row is none of x's.
__global__ void __launch_bounds__(kRestThreads) zero_unserved(const __grid_constant__ Routing r, TileList list,
                                                              const __grid_constant__ ProjectionOut out, int64_t N) {
  pdl_trigger();
  pdl_wait();
  const int64_t served = list.round[list.rounds] == 0 ? 0 : r.begin[r.E];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int64_t first = (int64_t{blockIdx.x} * kRestThreads + threadIdx.x) / 32 * 32; first < r.P;
       first += int64_t{gridDim.x} * kRestThreads) {
    const int64_t p = first + lane;
    bool unserved = p < r.P && p >= served;
    if (p < served && r.row != nullptr) unserved = r.row[p] < 0 || r.row[p] >= r.R;
    if (p < served && r.row == nullptr) unserved = p >= r.R;
    for (unsigned left = __ballot_sync(0xffffffffu, unserved); left != 0; left &= left - 1)
      for (int64_t n = lane; n < N; n += 32) out.put(first + __ffs(static_cast<int>(left)) - 1, n, 0);
  }
}

template <DType kFormat>
void multiply_as(const Exec& ex, const GroupedLinearArgs& a, const GroupedLinearDesc& d, Gemm& p) {
  using Shape = GemmShape<kFormat, kPairs<kFormat>>;
  const Matrix& w = a.w[0];
  p.weight_boxes = tensor_map(ex.device, w.data, kFormat == DType::bf16, kFormat == DType::f4_e2m1 ? d.K / 2 : d.K,
                              (d.E - 1) * p.expert_rows + d.N, w.row_bytes, Shape::kRowBytes, kGemmRows);
  launch(ex, "grouped_linear",
         {.grid = static_cast<unsigned>(d.target.multiprocessors),
          .block = kGemmThreads,
          .shared_bytes = Shape::kSharedBytes,
          .pdl = true},
         gemm_sm90<kFormat, kPairs<kFormat>, Gemm>, p);
}

void multiply(const Exec& ex, const GroupedLinearArgs& a, const GroupedLinearDesc& d, Gemm& p) {
  dispatch_weights(d.w, [&](auto format) {
    if constexpr (format() != DType::f32) multiply_as<format()>(ex, a, d, p);
  });
}

}  // namespace

void grouped_linear_cuda_gemm(const Exec& ex, const GroupedLinearArgs& a, const GroupedLinearDesc& d, void* scratch) {
  if (d.P == 0 || d.N == 0) return;
  const GemmScratch at = gemm_scratch(d.P, d.E, d.K, gemm_pairs(d.w));
  auto* bytes = static_cast<char*>(scratch);
  auto* gathered = reinterpret_cast<bf16*>(bytes + at.rows);
  const Routing routing = routing_of(ex, a, d, gemm_pairs(d.w));
  Gemm p{.experts = experts_of(ex, a.w, nullptr),
         .list = {reinterpret_cast<int4*>(bytes), reinterpret_cast<int*>(bytes + at.rounds),
                  static_cast<int>(rounds_of(d.P))},
         .out = projection_out(a.out, {}),
         .N = d.N,
         .K = d.K,
         .row_tiles = static_cast<int>((d.N + kGemmRows - 1) / kGemmRows),
         .steps = static_cast<int>(d.K / kGemmColumns)};
  p.expert_rows = p.experts.data_step / a.w[0].row_bytes;
  p.words = d.out == DType::bf16 && reinterpret_cast<uintptr_t>(a.out.data) % 4 == 0 && a.out.stride[0] % 2 == 0;
  launch(ex, "grouped_linear", {.grid = 1, .block = kPlanThreads, .pdl = pdl_pays(d.target, 1)}, list_tiles, routing,
         p.list, static_cast<int>(gemm_pairs(d.w)));
  const auto boxes = [&](const void* data, int64_t rows, int64_t row_bytes) {
    p.pair_boxes = tensor_map(ex.device, data, true, d.K, rows, row_bytes, 128, Gemm::kBoxTokens);
  };
  if (routing.R > 0 && routing.row == nullptr) {  // rows of x are in the order of the pairs
    boxes(a.x.data, routing.R, a.x.stride[0] * 2);
    p.rounds = p.list.rounds;
    multiply(ex, a, d, p);
  } else if (routing.R > 0) {
    boxes(gathered, at.gathered, d.K * 2);
    p.rounds = 1;
    for (int round = 0; round < p.list.rounds; ++round) {
      p.round = round, p.first_pair = static_cast<int>(round * kRoundPairs);
      const int64_t count = std::min(d.P - p.first_pair, at.gathered);
      launch(ex, "grouped_linear",
             {.grid = grid_of(count, kGatherThreads / 32, 16 * d.target.multiprocessors), .block = kGatherThreads},
             gather_rows, routing, p.list, rows<const bf16>(a.x), gathered, int64_t{p.first_pair}, count, d.K);
      multiply(ex, a, d, p);
    }
  }
  launch(ex, "grouped_linear",
         {.grid = grid_of(d.P, kRestThreads, d.target.multiprocessors), .block = kRestThreads, .pdl = true},
         zero_unserved, routing, p.list, p.out, d.N);
}

}  // namespace kdelta
