// norm on CUDA: a row in the registers of a group of threads, read once and written once.
#include "kdelta/ops/common/cuda/launch.cuh"
#include "kdelta/ops/common/cuda/row.cuh"
#include "kdelta/ops/common/cuda/views.cuh"
#include "kdelta/ops/common/dispatch.h"
#include "kdelta/ops/norm/variants.h"

namespace kdelta {
namespace {

using namespace cuda;

// kFew: the weights, which no kernel in front writes, come while those end, at the price of places for other rows'
// blocks.
template <int kGroup, int kChunks, bool kAligned, bool kFew, class In, class Out>
__global__ void __launch_bounds__(RowGroup<kGroup>::kThreads)
    norm_rows(Rows<const In> x, const float* weight, Rows<Out> out, int64_t T, int64_t D, float eps) {
  using Group = RowGroup<kGroup>;
  __shared__ float shared[Group::kSharedFloats];
  pdl_trigger();
  float w[kFew ? kChunks : 1][kChunk];
  if constexpr (kFew)
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int64_t d = (c * kGroup + Group::lane()) * kChunk;
      if (d < D) load_chunk<kAligned>(weight + d, D - d, w[c]);
    }
  pdl_wait();
  const int64_t t = Group::row();
  float v[kChunks][kChunk], sum[1] = {0};
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    const int64_t d = (c * kGroup + Group::lane()) * kChunk;
    if (t < T && d < D) {
      load_chunk<kAligned>(x.at(t) + d, D - d, v[c]);
#pragma unroll
      for (int i = 0; i < kChunk; ++i) sum[0] = fmaf(v[c][i], v[c][i], sum[0]);
    }
  }
  Group::sums(sum, shared);
  const float scale = rsqrtf(sum[0] / static_cast<float>(D) + eps);
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    const int64_t d = (c * kGroup + Group::lane()) * kChunk;
    if (t >= T || d >= D) continue;
    if constexpr (!kFew) load_chunk<kAligned>(weight + d, D - d, w[0]);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) v[c][i] = v[c][i] * scale * w[kFew ? c : 0][i];
    store_chunk<kAligned>(out.at(t) + d, D - d, v[c]);
  }
}

}  // namespace

void norm_cuda(const Exec& ex, const NormArgs& a, const NormDesc& d, void*) {
  const int64_t T = d.rows, D = d.width;
  const bool aligned = D % kChunk == 0 && all_aligned16(a.x, a.weight, a.out);
  dispatch_activation(a.x.dtype, [&](auto in) {
    dispatch_activation(a.out.dtype, [&](auto out) {
      dispatch_bool(aligned, [&](auto fast) {
        dispatch_row(D, [&](auto group, auto chunks) {
          using In = decltype(in);
          using Out = decltype(out);
          using Group = RowGroup<group()>;
          const unsigned grid = grid_of(T, Group::kRows);
          const bool few = grid <= static_cast<unsigned>(d.target.multiprocessors);
          dispatch_bool(few, [&](auto ahead) {
            launch(ex, "norm", {.grid = grid, .block = Group::kThreads, .pdl = pdl_pays(d.target, grid)},
                   norm_rows<group(), chunks(), fast(), ahead(), In, Out>, rows<const In>(a.x), a.weight.data,
                   rows<Out>(a.out), T, D, a.eps);
          });
        });
      });
    });
  });
}

}  // namespace kdelta
