// moe_combine on CUDA: eight columns of a token a thread, the experts' rows in the order of the choices.
#include "kdelta/ops/common/cuda/launch.cuh"
#include "kdelta/ops/common/cuda/row.cuh"
#include "kdelta/ops/common/cuda/views.cuh"
#include "kdelta/ops/common/dispatch.h"
#include "kdelta/ops/moe_combine/variants.h"

namespace kdelta {
namespace {

using namespace cuda;
constexpr int kThreads = 128;
constexpr int kMaxChoices = 256;
// Rows in flight before the first is used: a few tokens have nothing else to wait behind.
template <class In>
constexpr int kTogether = sizeof(In) == 2 ? 16 : 8;

struct Params {
  View<const int32_t> position;
  View<const float> weight;
  const void* addend;  // null, or rows of E or of fp32
  int64_t addend_stride;
  bool addend_f32;
  int64_t T, D, P;
  int k;
  uint32_t* faults;
};

template <bool kAligned, class In, class Out>
__global__ void __launch_bounds__(kThreads)
    moe_combine_chunks(const __grid_constant__ Params p, Rows<const In> y, Rows<Out> out) {
  __shared__ int32_t place[kMaxChoices];
  __shared__ float weight[kMaxChoices];
  pdl_trigger();
  pdl_wait();
  const int64_t t = blockIdx.x;
  int any = 0, wrong = 0;
  for (int i = static_cast<int>(threadIdx.x); i < p.k; i += kThreads) {
    const int32_t at = p.position.data[t * p.position.stride[0] + i];
    place[i] = at;
    weight[i] = p.weight.data[t * p.weight.stride[0] + i];
    any |= at >= 0;
    wrong |= at < -1 || at >= p.P;
  }
  any = __syncthreads_or(any);
  wrong = __syncthreads_or(wrong);
  if (wrong != 0 && threadIdx.x == 0) raise(p.faults, Fault::position);
  const int choices = wrong != 0 ? 0 : p.k;
  const int64_t d = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * kChunk, n = p.D - d;
  if (n <= 0) return;
  float sum[kChunk] = {};
  for (int first = 0; first < choices; first += kTogether<In>) {
    RawChunk<kAligned, In> raw[kTogether<In>];
#pragma unroll
    for (int j = 0; j < kTogether<In>; ++j)
      if (first + j < choices && place[first + j] >= 0) raw[j].load(y.at(place[first + j]) + d, n);
#pragma unroll
    for (int j = 0; j < kTogether<In>; ++j)
      if (first + j < choices && place[first + j] >= 0) {
        float x[kChunk];
        raw[j].unpack(x);
#pragma unroll
        for (int i = 0; i < kChunk; ++i) sum[i] = fmaf(weight[first + j], x[i], sum[i]);
      }
  }
  if (p.addend != nullptr && any != 0 && wrong == 0) {
    float x[kChunk];
    if (p.addend_f32)
      load_chunk<kAligned>(static_cast<const float*>(p.addend) + t * p.addend_stride + d, n, x);
    else
      load_chunk<kAligned>(static_cast<const bf16*>(p.addend) + t * p.addend_stride + d, n, x);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) sum[i] += x[i];
  }
  store_chunk<kAligned>(out.at(t) + d, n, sum);
}

}  // namespace

void moe_combine_cuda(const Exec& ex, const MoeCombineArgs& a, const MoeCombineDesc& d, void*) {
  if (d.tokens == 0 || d.width == 0) return;
  const bool aligned = d.width % kChunk == 0 && all_aligned16(a.y, a.out, a.addend);
  const Params p{.position = a.position,
                 .weight = a.weight,
                 .addend = a.addend.data,
                 .addend_stride = a.addend.stride[0],
                 .addend_f32 = a.addend.dtype == DType::f32,
                 .T = d.tokens,
                 .D = d.width,
                 .P = a.y.dim(0),
                 .k = static_cast<int>(d.choices),
                 .faults = ex.faults};
  const dim3 grid(static_cast<unsigned>(d.tokens), grid_of(d.width, kThreads * kChunk));
  const Launch l{.grid = grid, .block = kThreads, .pdl = pdl_pays(d.target, int64_t{grid.x} * grid.y)};
  dispatch_activation(a.y.dtype, [&](auto in) {
    dispatch_activation(a.out.dtype, [&](auto out) {
      dispatch_bool(aligned, [&](auto fast) {
        using In = decltype(in);
        using Out = decltype(out);
        launch(ex, "moe_combine", l, moe_combine_chunks<fast(), In, Out>, p, rows<const In>(a.y), rows<Out>(a.out));
      });
    });
  });
}

}  // namespace kdelta
