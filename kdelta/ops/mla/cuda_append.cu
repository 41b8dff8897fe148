// mla_append on CUDA: a block takes a few tokens one after the other, finds their sequence and copies their latents.
#include "kdelta/ops/common/cuda/launch.cuh"
#include "kdelta/ops/common/cuda/views.cuh"
#include "kdelta/ops/mla/cuda_paged.cuh"
#include "kdelta/ops/mla/variants.h"

namespace kdelta {
namespace {

using namespace cuda;
using mla_cuda::PagedArrays;
constexpr int kThreads = 128, kMostTokens = 64, kBlocksPerMultiprocessor = 8;

// A copy knows no types: words of 16 bytes, or of an element where rows do not begin at 16 bytes.
template <class Word>
struct Params {
  Rows<const Word> latent, rope;
  Word* cache;
  int L, R, T, tile;  // L, R and strides in words
  PagedArrays seq;
  uint32_t* faults;
};

template <class Word>
__global__ void __launch_bounds__(kThreads) append_rows(const __grid_constant__ Params<Word> p) {
  pdl_trigger();
  pdl_wait();
  const int first = static_cast<int>(blockIdx.x) * p.tile, last = min(first + p.tile, p.T);
  if (blockIdx.x == 0)  // a row that ends before it begins owns no token that would find it
    for (int n = static_cast<int>(threadIdx.x); n < p.seq.count; n += kThreads)
      if (mla_cuda::boundaries_are_wrong(p.seq, n)) raise(p.faults, Fault::boundaries);
  int n = -1;
  bool sound = false;
  for (int t = first; t < last; ++t) {
    const int owner = mla_cuda::owner_of(p.seq, t);
    if (owner < 0) continue;  // the same in every thread
    if (owner != n) sound = !mla_cuda::row_is_faulty(p.seq, n = owner, p.faults);
    if (!sound) continue;
    const int64_t row = p.seq.row(n, int64_t{p.seq.context[n]} + t - p.seq.begin(n));
    Word* to = p.cache + row * (p.L + p.R);
    for (int i = static_cast<int>(threadIdx.x); i < p.L + p.R; i += kThreads)
      to[i] = i < p.L ? p.latent.at(t)[i] : p.rope.at(t)[i - p.L];
  }
}

template <class Word>
void append(const Exec& ex, const MlaAppendArgs& a, const MlaAppendDesc& d) {
  const auto element = dtype_bytes(a.cache.dtype);
  const auto words = [&](int64_t elements) { return elements * element / static_cast<int64_t>(sizeof(Word)); };
  const int64_t most = int64_t{kBlocksPerMultiprocessor} * std::max(d.target.multiprocessors, 1);
  const int64_t tile = std::clamp<int64_t>((d.tokens + most - 1) / most, 1, kMostTokens);
  const Params<Word> p{.latent = {static_cast<const Word*>(a.latent.data), words(a.latent.stride[0])},
                       .rope = {static_cast<const Word*>(a.rope.data), words(a.rope.stride[0])},
                       .cache = static_cast<Word*>(a.cache.data),
                       .L = static_cast<int>(words(a.latent.dim(1))),
                       .R = static_cast<int>(words(a.rope.dim(1))),
                       .T = static_cast<int>(d.tokens),
                       .tile = static_cast<int>(tile),
                       .seq = mla_cuda::paged_arrays(a.seq, d.tokens, a.cache.shape),
                       .faults = ex.faults};
  const unsigned grid = grid_of(d.tokens, tile);
  launch(ex, "mla_append", {.grid = grid, .block = kThreads, .pdl = pdl_pays(d.target, grid)}, append_rows<Word>, p);
}

}  // namespace

void mla_append_cuda(const Exec& ex, const MlaAppendArgs& a, const MlaAppendDesc& d, void*) {
  if (all_aligned16(a.latent, a.rope, a.cache))
    append<uint4>(ex, a, d);
  else if (a.cache.dtype == DType::f32)
    append<uint32_t>(ex, a, d);
  else
    append<uint16_t>(ex, a, d);
}

}  // namespace kdelta
