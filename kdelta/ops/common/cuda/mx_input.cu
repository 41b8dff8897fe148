// mx_input_values on a CUDA device: eight columns a thread, so that four lanes share a block of 32 and its scale.
#include "kdelta/ops/common/cuda/launch.cuh"
#include "kdelta/ops/common/cuda/mx_chunk.cuh"
#include "kdelta/ops/common/cuda/mx_input.h"
#include "kdelta/ops/common/cuda/views.cuh"
#include "kdelta/ops/common/dispatch.h"

namespace kdelta {
namespace {

using namespace cuda;
constexpr int kThreads = 256;

struct Values {
  Rows<const uint8_t> scale;  // of an x that is codes
  int64_t T, K;
  MxScaleRule rule;
};

// In: f32 or bf16 to be quantised, or uint8_t, codes.
template <DType kFormat, class In, class Out>
__global__ void __launch_bounds__(kThreads)
    input_values(const __grid_constant__ Values p, Rows<const In> x, Rows<Out> out) {
  pdl_trigger();
  pdl_wait();
  const int64_t d = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kChunk;
  const bool inside = d < p.K;
  for (int64_t t = blockIdx.y; t < p.T; t += gridDim.y) {
    uint32_t code[kChunk] = {};
    float factor = 0, v[kChunk];
    if constexpr (sizeof(In) > 1) {
      quantise_chunk<kFormat>(x.at(t) + d, inside, p.rule, code, factor);
    } else if (inside) {
      const uint8_t scale = p.scale.at(t)[d / kMxBlock];
      factor = scale == 255 ? NAN : power_of_two(scale - 127);
#pragma unroll
      for (int i = 0; i < kChunk; ++i) code[i] = x.at(t)[d + i];
    }
    if (!inside) continue;
#pragma unroll
    for (int i = 0; i < kChunk; ++i) v[i] = value_of<kFormat>(code[i]) * factor;
    store_chunk<false>(out.at(t) + d, kChunk, v);
  }
}

template <class F>
void dispatch_input(DType dtype, F&& f) {
  if (dtype == DType::f8_e4m3 || dtype == DType::f8_e5m2) return f(uint8_t{});
  dispatch_activation(dtype, f);
}

}  // namespace

void mx_input_cuda(const Exec& ex, const AnyConstView& x, const View<const uint8_t>& scale, const MxInput& input,
                   const AnyView& out) {
  const int64_t T = x.dim(0), K = x.dim(1);
  if (T == 0 || K == 0) return;
  const bool codes = x.dtype == DType::f8_e4m3 || x.dtype == DType::f8_e5m2;
  const Values p{
      .scale = codes ? rows<const uint8_t>(scale) : Rows<const uint8_t>{}, .T = T, .K = K, .rule = input.rule};
  const dim3 grid(grid_of(K, kThreads * kChunk), static_cast<unsigned>(std::min<int64_t>(T, 65535)));
  const Launch l{.grid = grid, .block = kThreads, .pdl = pdl_pays(target_of(ex), int64_t{grid.x} * grid.y)};
  const DType format = codes ? x.dtype : input.format;
  dispatch_input(x.dtype, [&](auto in) {
    dispatch_activation(out.dtype, [&](auto o) {
      using In = decltype(in);
      using Out = decltype(o);
      if (format == DType::f8_e4m3)
        launch(ex, "mx_input", l, input_values<DType::f8_e4m3, In, Out>, p, rows<const In>(x), rows<Out>(out));
      else
        launch(ex, "mx_input", l, input_values<DType::f8_e5m2, In, Out>, p, rows<const In>(x), rows<Out>(out));
    });
  });
}

}  // namespace kdelta
