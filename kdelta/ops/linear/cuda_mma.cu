// linear on CUDA with bf16 tokens on tensor cores: blocks of 16 weight rows and up to 16 tokens, all parts in one grid.
// One order of sums for every number of tokens (common/cuda/skinny.cuh).
#include "kdelta/ops/common/cuda/launch.cuh"
#include "kdelta/ops/common/cuda/one_token.cuh"
#include "kdelta/ops/common/cuda/views.cuh"
#include "kdelta/ops/linear/cuda_parts.cuh"

namespace kdelta {
namespace {

using namespace cuda;

// Three blocks of seven warps fit a multiprocessor: six warps on one of its quarters, with 80 registers a thread.
constexpr int kRegisters = 80;
template <DType kFormat, int kTokens8>
__global__ void __maxnreg__(kRegisters) project_skinny(const __grid_constant__ Parts parts, int64_t T, int64_t K) {
  extern __shared__ uint8_t shared[];
  const unsigned token_tiles = gridDim.x / static_cast<unsigned>(parts.tiles());
  const int64_t t0 = int64_t{blockIdx.x % token_tiles} * (8 * kTokens8);
  const int tile = static_cast<int>(blockIdx.x / token_tiles), p = parts.of_tile(tile);
  const int64_t n0 = int64_t{tile - parts.first_tile[p]} * kSkinnyRows;
  const ProjectionOut& out = parts.out[p];
  skinny_tile<kFormat, kTokens8>(
      parts.w[p], n0, K, shared, [&](int i) { return parts.x[p].at(min(t0 + i, T - 1)); },
      [] {
        pdl_wait();
        pdl_trigger();
      },
      [&](int i, int64_t n, float sum) {
        if (t0 + i < T) out.put(t0 + i, n, sum);
      });
}

template <DType kFormat>
__global__ void __maxnreg__(kRegisters) project_token(const __grid_constant__ Parts parts, int64_t K, bool early) {
  extern __shared__ uint8_t shared[];
  const int tile = static_cast<int>(blockIdx.x), p = parts.of_tile(tile);
  const WeightRows& w = parts.w[p];
  const int64_t n0 = int64_t{tile - parts.first_tile[p]} * kSkinnyRows;
  one_token_tile<kFormat>(
      NeighbourRows(w, n0), K, [&] { return parts.x[p].at(0); }, shared, early,
      [&](int r, float sum) {
        if (threadIdx.x < kSkinnyRows && n0 + r < w.rows) parts.out[p].put(0, n0 + r, sum);
      });
}

// Measured: blocks that begin early share out the multiprocessors unevenly, which two long ones on each suffer from
// more than they gain.
bool token_begins_early(DType weights, int64_t blocks, int64_t multiprocessors) {
  return weights != DType::bf16 || blocks >= 3 * multiprocessors;
}

}  // namespace

void linear_cuda_mma(const Exec& ex, const LinearArgs& a, const LinearDesc& d, void*) {
  const Parts parts = linear_parts(a, kSkinnyRows);
  if (d.T == 0 || parts.tiles() == 0) return;
  const int tokens = d.T == 1 ? 1 : d.T <= 8 ? 8 : 16;
  const unsigned grid = static_cast<unsigned>(parts.tiles()) * grid_of(d.T, tokens);
  Launch l{.grid = grid, .block = static_cast<unsigned>(32 * skinny_warps(d.K)), .pdl = pdl_pays(d.target, grid)};
  dispatch_weights(d.w, [&](auto format) {
    if constexpr (format() != DType::f32) {
      if (tokens == 1) {
        l.shared_bytes = one_token_shared_bytes<format()>(d.K);
        l.pdl = l.pdl || (d.target.cuda >= CudaLevel::sm90a && token_begins_early(d.w, grid, d.target.multiprocessors));
        return launch(ex, "linear", l, project_token<format()>, parts, d.K, l.pdl);
      }
      const auto kernel = tokens == 8 ? project_skinny<format(), 1> : project_skinny<format(), 2>;
      l.shared_bytes = tokens == 8 ? skinny_shared_bytes<format(), 1>(d.K) : skinny_shared_bytes<format(), 2>(d.K);
      launch(ex, "linear", l, kernel, parts, d.T, d.K);
    }
  });
}

}  // namespace kdelta
