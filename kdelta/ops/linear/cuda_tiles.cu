// linear on CUDA for every type and layout: tiles in shared memory, every product and sum in fp32. The order of an
// output's sum is that of its columns, whatever the tile.
#include "kdelta/ops/common/cuda/launch.cuh"
#include "kdelta/ops/common/cuda/projection.cuh"
#include "kdelta/ops/common/cuda/views.cuh"
#include "kdelta/ops/common/dispatch.h"
#include "kdelta/ops/linear/variants.h"

namespace kdelta {
namespace {

using namespace cuda;
constexpr int kThreads = 256, kTileN = 64, kStep = 32;

// A thread owns 4 outputs x kTileT / 16 tokens, 16 apart: neighbours then write side by side.
template <DType kFormat, int kTileT, class In>
__global__ void __launch_bounds__(kThreads)
    project_tiles(const __grid_constant__ WeightRows w, Rows<const In> x, const __grid_constant__ ProjectionOut out,
                  int64_t T, int64_t K) {
  constexpr int kTokens = kTileT / 16;
  __shared__ float ws[kStep][kTileN + 1], xs[kStep][kTileT + 1];
  pdl_trigger();
  pdl_wait();
  const int lane_n = static_cast<int>(threadIdx.x) % 16, lane_t = static_cast<int>(threadIdx.x) / 16;
  const int64_t n0 = int64_t{blockIdx.x} * kTileN;
  for (int64_t t0 = int64_t{blockIdx.y} * kTileT; t0 < T; t0 += int64_t{gridDim.y} * kTileT) {
    float sum[4][kTokens] = {};
    for (int64_t k0 = 0; k0 < K; k0 += kStep) {
      __syncthreads();
      for (int i = static_cast<int>(threadIdx.x); i < kTileN * kStep; i += kThreads) {
        const int64_t n = n0 + i / kStep, k = k0 + i % kStep;
        ws[i % kStep][i / kStep] = n < w.rows && k < K ? weight_at<kFormat>(w, n, k) : 0.0f;
      }
      for (int i = static_cast<int>(threadIdx.x); i < kTileT * kStep; i += kThreads) {
        const int64_t t = t0 + i / kStep, k = k0 + i % kStep;
        xs[i % kStep][i / kStep] = t < T && k < K ? to_f32(x.at(t)[k]) : 0.0f;
      }
      __syncthreads();
#pragma unroll
      for (int k = 0; k < kStep; ++k)
#pragma unroll
        for (int j = 0; j < kTokens; ++j)
#pragma unroll
          for (int i = 0; i < 4; ++i) sum[i][j] = fmaf(xs[k][lane_t + 16 * j], ws[k][lane_n + 16 * i], sum[i][j]);
    }
#pragma unroll
    for (int j = 0; j < kTokens; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int64_t t = t0 + lane_t + 16 * j, n = n0 + lane_n + 16 * i;
        if (t < T && n < w.rows) out.put(t, n, sum[i][j]);
      }
  }
}

void project(const Exec& ex, const LinearDesc& d, const Matrix& m, const AnyConstView& x, const ProjectionOut& out) {
  const bool few = d.T <= 16;
  const dim3 grid(grid_of(m.rows, kTileN), grid_of(d.T, few ? 16 : 64, 65535));
  const Launch l{.grid = grid, .block = kThreads, .pdl = pdl_pays(d.target, int64_t{grid.x} * grid.y)};
  dispatch_weights(m.dtype, [&](auto format) {
    dispatch_activation(x.dtype, [&](auto in) {
      using In = decltype(in);
      const auto kernel = few ? project_tiles<format(), 16, In> : project_tiles<format(), 64, In>;
      launch(ex, "linear", l, kernel, weight_rows(m), rows<const In>(x), out, d.T, d.K);
    });
  });
}

}  // namespace

void linear_cuda(const Exec& ex, const LinearArgs& a, const LinearDesc& d, void*) {
  if (d.T == 0) return;
  project(ex, d, a.w, a.x, projection_out(a.out, a.addend));
  for (const LinearPart& p : a.more) project(ex, d, p.w, a.x, projection_out(p.out, {}));
}

}  // namespace kdelta
