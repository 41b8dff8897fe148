// grouped_linear on CUDA for the pairs of very few tokens: each pair by itself, as linear takes one token
// (common/cuda/one_token.cuh), which reads memory as it likes best. A block has one pair and 16 weight rows of its
// expert; with gate and up projections eight rows of the one and the same eight of the other.
#include "kdelta/ops/common/cuda/launch.cuh"
#include "kdelta/ops/common/cuda/one_token.cuh"
#include "kdelta/ops/common/cuda/views.cuh"
#include "kdelta/ops/grouped_linear/cuda_gate.cuh"
#include "kdelta/ops/grouped_linear/cuda_routing.cuh"

namespace kdelta {
namespace {

using namespace cuda;
using namespace grouped;

struct Params {
  Experts experts, up;
  Routing routing;
  Rows<const bf16> x;
  ProjectionOut out;
  int64_t N, K;
  float beta, linear_beta;
  bool settled;  // the routing is older than the kernel in front
};

__device__ __forceinline__ WeightRows rows_of(const Expert& e, int64_t N) {
  return {e.data, e.scale, e.row_bytes, e.scale_row_bytes, N};
}

// Eight rows of gate, eight of up.
struct TwoProjections {
  NeighbourRows gate, up;
  __device__ __forceinline__ const uint8_t* data(int r) const { return r < 8 ? gate.data(r) : up.data(r - 8); }
  __device__ __forceinline__ const uint8_t* scale(int r) const { return r < 8 ? gate.scale(r) : up.scale(r - 8); }
};

template <DType kFormat, Gate kGate>
__global__ void __maxnreg__(kFormat == DType::bf16 ? 80 : 96) multiply_pairs(const __grid_constant__ Params p) {
  constexpr bool kGated = kGate != Gate::none;
  constexpr int kRows = kSkinnyRows / (kGated ? 2 : 1);
  extern __shared__ uint8_t shared[];
  if (!p.settled) pdl_wait();
  const Tile tile = find_tile<1>(p.routing, blockIdx.x);
  const int lane = static_cast<int>(threadIdx.x);
  const int64_t n0 = int64_t{blockIdx.y} * kRows;
  if (tile.expert < 0 || tile.expert == p.routing.E) {
    if (p.settled) pdl_wait();  // outputs may still be read in front
    pdl_trigger();
    if (tile.expert >= 0 && lane < kRows && n0 + lane < p.N) p.out.put(tile.first, n0 + lane, 0.0f);
    return;
  }
  int64_t row = -1;
  const auto token = [&] {
    row = row_of(p.routing, tile.first);
    return p.x.at(max(row, int64_t{0}));
  };
  const NeighbourRows gate(rows_of(p.experts.at(tile.expert), p.N), n0);
  if constexpr (kGated) {
    const TwoProjections both{gate, NeighbourRows(rows_of(p.up.at(tile.expert), p.N), n0)};
    one_token_tile<kFormat>(both, p.K, token, shared, p.settled, [&](int, float sum) {
      const float up = __shfl_down_sync(0xffffffffu, sum, 8);
      if (lane < kRows && n0 + lane < p.N)
        p.out.put(tile.first, n0 + lane, row >= 0 ? gate_of<kGate>(sum, up, p.beta, p.linear_beta) : 0.0f);
    });
  } else {
    one_token_tile<kFormat>(gate, p.K, token, shared, p.settled, [&](int, float sum) {
      if (lane < kRows && n0 + lane < p.N) p.out.put(tile.first, n0 + lane, row >= 0 ? sum : 0.0f);
    });
  }
}

template <DType kFormat, Gate kGate>
void run(const Exec& ex, const GroupedLinearArgs& a, const GroupedLinearDesc& d, void* scratch) {
  constexpr bool kGated = kGate != Gate::none;
  Params p{.experts = experts_of(ex, a.w, scratch),
           .up = kGated ? experts_of(ex, a.up_w, static_cast<char*>(scratch) + grouped::table_bytes(d.E)) : Experts{},
           .routing = routing_of(ex, a, d, 1),
           .x = rows<const bf16>(a.x),
           .out = projection_out(a.out, {}),
           .N = d.N,
           .K = d.K,
           .beta = a.beta,
           .linear_beta = a.linear_beta};
  p.settled = a.routing_settled && p.experts.table == nullptr;
  const dim3 grid(static_cast<unsigned>(slots_of(d.P, d.E, 1).count), grid_of(d.N, kSkinnyRows / (kGated ? 2 : 1)));
  launch(ex, "grouped_linear",
         {.grid = grid,
          .block = static_cast<unsigned>(32 * skinny_warps(d.K)),
          .shared_bytes = one_token_shared_bytes<kFormat>(d.K),
          .pdl = d.target.cuda >= CudaLevel::sm90a},
         multiply_pairs<kFormat, kGate>, p);
}

}  // namespace

void grouped_linear_cuda_pairs(const Exec& ex, const GroupedLinearArgs& a, const GroupedLinearDesc& d, void* scratch) {
  if (d.P == 0 || d.N == 0) return;
  dispatch_weights(d.w, [&](auto format) {
    if constexpr (format() != DType::f32)
      dispatch_gate(a, [&](auto gate) { run<format(), gate()>(ex, a, d, scratch); });
  });
}

}  // namespace kdelta
