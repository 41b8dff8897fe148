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

// tanh(x) as over / under: two tangents share one reciprocal, and the units that make exponentials and reciprocals are
// what limits this op. Saturates at |x| = 10, where tanh is 1 in fp32. Small arguments keep their relative precision by
// a Taylor sum.
struct Fraction {
  float over, under;
};
__device__ __forceinline__ Fraction fast_tangent(float x) {
  const float e = __expf(2 * fminf(fmaxf(x, -10.0f), 10.0f)), y = x * x;
  const float taylor = x * fmaf(y, fmaf(y, fmaf(y, -17.0f / 315, 2.0f / 15), -1.0f / 3), 1.0f);
  return {fabsf(x) < 0.35f ? taylor * (e + 1) : isnan(x) ? x : e - 1, e + 1};
}

template <ActivationKind kKind, bool kExact>
__device__ __forceinline__ float activate(float gate, float up, float beta, float linear_beta) {
  if constexpr (kKind == ActivationKind::swiglu) {
    return gate * sigmoid<kExact>(gate) * up;
  } else if constexpr (kKind == ActivationKind::sigmoid_gate) {
    return sigmoid<kExact>(gate) * up;
  } else if constexpr (kExact) {
    const float linear = linear_beta > 0 ? linear_beta * tanhf(up / linear_beta) : up;
    return beta * tanhf(gate / beta) * sigmoid<true>(gate) * linear;
  } else {
    const Fraction g = fast_tangent(gate * (1 / beta));
    const Fraction u = linear_beta > 0 ? fast_tangent(up * (1 / linear_beta)) : Fraction{up, 1};
    const float size = linear_beta > 0 ? beta * linear_beta : beta;
    return size * __fdividef(g.over * u.over, g.under * u.under) * sigmoid<false>(gate);
  }
}

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

template <class F>
void dispatch_kind(ActivationKind kind, F&& f) {
  using enum ActivationKind;
  switch (kind) {
    case swiglu:
      return f(std::integral_constant<ActivationKind, swiglu>{});
    case situ:
      return f(std::integral_constant<ActivationKind, situ>{});
    case sigmoid_gate:
      return f(std::integral_constant<ActivationKind, sigmoid_gate>{});
  }
  KDELTA_UNREACHABLE("activation kind", kind);
}

}  // namespace

void activation_cuda(const Exec& ex, const ActivationArgs& a, const ActivationDesc& d, void*) {
  if (d.rows == 0 || d.width == 0) return;
  const bool aligned = d.width % kChunk == 0 && all_aligned16(a.gate, a.up, a.out);
  const dim3 grid(grid_of(d.width, kThreads * kChunk), static_cast<unsigned>(std::min<int64_t>(d.rows, 65535)));
  const Launch l{.grid = grid, .block = kThreads, .pdl = pdl_pays(d.target, int64_t{grid.x} * grid.y)};
  dispatch_kind(a.kind, [&](auto kind) {
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
