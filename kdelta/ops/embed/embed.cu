// embed on CUDA: a block copies a row.
#include "kdelta/ops/common/cuda/launch.cuh"
#include "kdelta/ops/common/cuda/row.cuh"
#include "kdelta/ops/common/cuda/views.cuh"
#include "kdelta/ops/common/dispatch.h"
#include "kdelta/ops/embed/variants.h"

namespace kdelta {
namespace {

using namespace cuda;
constexpr int kThreads = 256;

// An element of a table that may start at any byte.
template <class T>
__device__ __forceinline__ float element(const uint8_t* p) {
  uint32_t bits = 0;
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(T)); ++i) bits |= static_cast<uint32_t>(p[i]) << (8 * i);
  return sizeof(T) == 4 ? __uint_as_float(bits) : __uint_as_float(bits << 16);
}

template <bool kAligned, class In, class Out>
__global__ void __launch_bounds__(kThreads)
    embed_rows(const int32_t* token, int64_t token_stride, const uint8_t* table, int64_t row_bytes, int64_t first,
               int64_t held, int64_t vocabulary, Rows<Out> out, int64_t T, int64_t D, uint32_t* faults) {
  pdl_trigger();
  pdl_wait();
  const int64_t d = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kChunk;
  for (int64_t t = blockIdx.y; t < T; t += gridDim.y) {
    const int32_t id = token[t * token_stride];
    if ((id < -1 || id >= vocabulary) && threadIdx.x == 0) raise(faults, Fault::token);
    const int64_t place = id - first;
    const bool known = id >= 0 && place >= 0 && place < held;
    if (d >= D) continue;
    float x[kChunk] = {};
    if (known) {
      const uint8_t* row = table + place * row_bytes;
      if constexpr (kAligned) {
        load<true>(reinterpret_cast<const In*>(row) + d, x);
      } else {
#pragma unroll
        for (int i = 0; i < kChunk; ++i)
          if (d + i < D) x[i] = element<In>(row + (d + i) * static_cast<int64_t>(sizeof(In)));
      }
    }
    store_chunk<kAligned>(out.at(t) + d, D - d, x);
  }
}

}  // namespace

void embed_cuda(const Exec& ex, const EmbedArgs& a, const EmbedDesc& d, void*) {
  if (d.rows == 0 || d.width == 0) return;
  const bool aligned = d.width % kChunk == 0 && reinterpret_cast<uintptr_t>(a.table.data) % 16 == 0 &&
                       a.table.row_bytes % 16 == 0 && aligned16(a.out);
  const dim3 grid(grid_of(d.width, kThreads * kChunk), static_cast<unsigned>(std::min<int64_t>(d.rows, 65535)));
  const Launch l{.grid = grid, .block = kThreads, .pdl = pdl_pays(d.target, int64_t{grid.x} * grid.y)};
  dispatch_activation(a.table.dtype, [&](auto in) {
    dispatch_activation(a.out.dtype, [&](auto out) {
      dispatch_bool(aligned, [&](auto fast) {
        using In = decltype(in);
        using Out = decltype(out);
        launch(ex, "embed", l, embed_rows<fast(), In, Out>, a.token.data, a.token.stride[0],
               static_cast<const uint8_t*>(a.table.data), a.table.row_bytes, a.first, a.table.rows, embed_vocabulary(a),
               rows<Out>(a.out), d.rows, d.width, ex.faults);
      });
    });
  });
}

}  // namespace kdelta
