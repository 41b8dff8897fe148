// activation on CUDA: elementwise, eight elements a thread.
#include "kdelta/ops/activation/variants.h"
#include "kdelta/ops/common/cuda/launch.cuh"
#include "kdelta/ops/common/cuda/math.cuh"
#include "kdelta/ops/common/cuda/row.cuh"
#include "kdelta/ops/common/cuda/views.cuh"
#include "kdelta/ops/common/dispatch.h"

namespace kdelta {
namespace {

using namespace cuda;
constexpr int kThreads = 256;

template <ActivationKind kKind, bool kAligned, class Gate, class Up, class Out>
__global__ void __launch_bounds__(kThreads) activation_chunks(Rows<const Gate> gate, Rows<const Up> up, Rows<Out> out,
                                                              int64_t T, int64_t N, float beta, float linear_beta) {
  pdl_trigger();
  pdl_wait();
  const int64_t d = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kChunk;
  if (d >= N) return;
  for (int64_t t = blockIdx.y; t < T; t += gridDim.y) {
    float g[kChunk], u[kChunk];
    load_chunk<kAligned>(gate.at(t) + d, N - d, g);
    load_chunk<kAligned>(up.at(t) + d, N - d, u);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) g[i] = activate<kKind, sizeof(Out) == 4>(g[i], u[i], beta, linear_beta);
    store_chunk<kAligned>(out.at(t) + d, N - d, g);
  }
}

}  // namespace

void activation_cuda(const Exec& ex, const ActivationArgs& a, const ActivationDesc& d, void*) {
  if (d.rows == 0 || d.width == 0) return;
  const bool aligned = d.width % kChunk == 0 && all_aligned16(a.gate, a.up, a.out);
  const dim3 grid(grid_of(d.width, kThreads * kChunk), static_cast<unsigned>(std::min<int64_t>(d.rows, 65535)));
  const Launch l{.grid = grid, .block = kThreads, .pdl = pdl_pays(d.target, int64_t{grid.x} * grid.y)};
  dispatch_activation_kind(a.kind, [&](auto kind) {
    dispatch_activation(a.gate.dtype, [&](auto gate) {
      dispatch_activation(a.up.dtype, [&](auto up) {
        dispatch_activation(a.out.dtype, [&](auto out) {
          dispatch_bool(aligned, [&](auto fast) {
            using Gate = decltype(gate);
            using Up = decltype(up);
            using Out = decltype(out);
            launch(ex, "activation", l, activation_chunks<kind(), fast(), Gate, Up, Out>, rows<const Gate>(a.gate),
                   rows<const Up>(a.up), rows<Out>(a.out), d.rows, d.width, a.beta, a.linear_beta);
          });
        });
      });
    });
  });
}

}  // namespace kdelta
