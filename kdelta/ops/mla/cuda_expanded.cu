// mla on Hopper for long prefills: keys and values are computed from the latents once for all queries. Kernels: the
// numbering of tiles and rows; latents side by side; then, for as many heads at a time as scratch takes, the product
// with kv_b (common/cuda/gemm_sm90.cuh) and the attention (cuda_expanded_attend.cu). Decode sequences of the same step
// take the absorbed form.
#include "kdelta/ops/common/cuda/gemm_sm90.cuh"
#include "kdelta/ops/common/cuda/launch.cuh"
#include "kdelta/ops/mla/cuda_decode.cuh"
#include "kdelta/ops/mla/cuda_expanded.cuh"

namespace kdelta {
namespace mla_cuda {
namespace {

using namespace cuda;

constexpr int kThreads = 256;
constexpr int kRows = 32;  // of a thread block that lays latents side by side
constexpr int kMostZeroBlocks = 128;

// Block 0 numbers tiles and rows; the others write zeros where no kernel computes.
__global__ void __launch_bounds__(kThreads) number_prefills(const __grid_constant__ ExpandedArgs a) {
  pdl_trigger();
  pdl_wait();
  if (blockIdx.x > 0) {
    zero_tokens(a.seq, a.out, a.H, kValue, static_cast<int>(blockIdx.x) - 1, static_cast<int>(gridDim.x) - 1);
    return;
  }
  int tiles = 0, rows = 0;
  for (int base = 0; base < a.n_prefill; base += kThreads) {
    const int n = base + static_cast<int>(threadIdx.x);
    PrefillPiece p{};
    int my_tiles = 0, my_rows = 0;
    if (n < a.n_prefill) {
      const uint32_t faults = row_faults(a.seq, n, a.seq.columns, 1);
      raise_all(a.faults, faults);
      a.w.sound[n] = faults == 0 ? 1 : 0;
      if (faults == 0 && a.seq.length(n) > 0) {
        p.token = a.seq.begin(n), p.tokens = a.seq.length(n), p.context = a.seq.context[n];
        my_tiles = (p.tokens + kQueries - 1) / kQueries;
        my_rows = (p.context + p.tokens + kKeys - 1) / kKeys * kKeys;
      }
    }
    int all_tiles = 0, all_rows = 0;
    p.tile_begin = tiles + block_scan<kThreads>(my_tiles, &all_tiles);
    p.row_begin = rows + block_scan<kThreads>(my_rows, &all_rows);
    if (n < a.n_prefill) a.w.piece[n] = p;
    tiles += all_tiles, rows += all_rows;
  }
  for (int n = a.seq.live + static_cast<int>(threadIdx.x); n < a.seq.count; n += kThreads)
    raise_all(a.faults, row_faults(a.seq, n, a.seq.columns, 1));
  if (threadIdx.x == 0) a.w.piece[a.n_prefill] = {.tile_begin = tiles, .row_begin = rows};
}

// Latents from their pages; zeros behind the last token and for a page that is none.
__global__ void __launch_bounds__(kThreads) lay_side_by_side(const __grid_constant__ ExpandedArgs a) {
  constexpr int kChunks = kWidth / 8;  // of 16 bytes in a row
  __shared__ int64_t from[kRows];      // row of the cache, -1: zeros
  pdl_trigger();
  pdl_wait();
  const int first = static_cast<int>(blockIdx.x) * kRows, tid = static_cast<int>(threadIdx.x);
  if (first >= a.w.piece[a.n_prefill].row_begin) return;
  const int n = find<&PrefillPiece::row_begin>(a.w.piece, a.n_prefill, first);
  if (tid < kRows) {
    const PrefillPiece p = a.w.piece[n];
    const int position = first + tid - p.row_begin;
    int64_t row = -1;
    if (position < p.context + p.tokens) {
      const int page = a.seq.pages[n * a.seq.pages_stride + position / a.seq.page_tokens];
      if (page >= 1 && page < a.seq.page_count) {
        row = int64_t{page} * a.seq.page_tokens + position % a.seq.page_tokens;
      } else {
        raise(a.faults, Fault::page);
        a.w.sound[n] = 0;
      }
    }
    from[tid] = row;
  }
  __syncthreads();
  for (int i = tid; i < kRows * kChunks; i += kThreads) {
    const int64_t row = from[i / kChunks];
    const auto* at = reinterpret_cast<const uint4*>(a.cache + row * kWidth) + i % kChunks;
    reinterpret_cast<uint4*>(a.w.latent + int64_t{first} * kWidth)[i] = row >= 0 ? __ldcs(at) : uint4{};
  }
}
static_assert(kKeys % kRows == 0, "a block's rows are of one sequence");

// Values that are not finite are zeros, so that a probability of zero cannot spread them; whoever sees such a position
// has NaN from its score.
template <bool kValues>
struct ExpandedSink {
  bf16* to;
  int tokens;  // left from the first on
  __device__ __forceinline__ static float finite(float x) { return fabsf(x) < INFINITY ? x : 0.0f; }
  __device__ __forceinline__ void put(int row, int token, float a, float b) const {
    if (token >= tokens) return;
    if constexpr (kValues) a = finite(a), b = finite(b);
    *reinterpret_cast<uint32_t*>(to + int64_t{token} * (kNope + kValue) + row) = pack_bf16(a, b);
  }
};

// Item i: 128 rows of kv_b, which are the keys or the values of a head, quickest; 256 rows of latents.
struct Expand {
  static constexpr int kTokens = 256, kBoxTokens = kTokens;
  CUtensorMap weight_boxes, latent_boxes;
  const PrefillPiece* end;  // how many rows there are
  bf16* key_value;
  int64_t rows;  // of a head in key_value
  int heads;

  struct Item {
    int first_step, steps, row, token;
  };
  __device__ __forceinline__ int items() const { return 2 * heads * ((end->row_begin + kTokens - 1) / kTokens); }
  __device__ __forceinline__ Item item(int i) const {
    return {0, kLatent / kGemmColumns, i % (2 * heads) * kGemmRows, i / (2 * heads) * kTokens};
  }
  __device__ __forceinline__ const CUtensorMap& token_map() const { return latent_boxes; }
  __device__ __forceinline__ const CUtensorMap& weight_map(const Item&) const { return weight_boxes; }
  __device__ __forceinline__ int weight_row(const Item& x) const { return x.row; }
  __device__ __forceinline__ int token_row(const Item& x) const { return x.token; }
  template <class F>
  __device__ __forceinline__ void with_sink(const Item& x, int row, int token, F&& f) const {
    const int n = x.row + row, h = n / (kNope + kValue), t = x.token + token;
    bf16* to = key_value + (h * rows + t) * (kNope + kValue) + n % (kNope + kValue);
    const int left = end->row_begin - t;
    if (x.row % (kNope + kValue) >= kNope) return f(ExpandedSink<true>{to, left});
    f(ExpandedSink<false>{to, left});
  }
};
static_assert(kNope == kGemmRows && kValue == kGemmRows);

void expand(const Exec& ex, const ExpandedArgs& a, const MlaDesc& d, const Matrix& kv_b, int first, int count) {
  using Shape = GemmShape<DType::bf16, Expand::kTokens>;
  const int64_t head_rows = kNope + kValue;
  Expand e{.end = a.w.piece + a.n_prefill, .key_value = a.w.key_value, .rows = a.w.rows, .heads = count};
  e.weight_boxes = tensor_map(ex.device, static_cast<const char*>(kv_b.data) + first * head_rows * kv_b.row_bytes, true,
                              kLatent, count * head_rows, kv_b.row_bytes, Shape::kRowBytes, kGemmRows);
  e.latent_boxes =
      tensor_map(ex.device, a.w.latent, true, kWidth, a.w.rows, kWidth * 2, Shape::kRowBytes, Expand::kTokens);
  const int64_t items = 2 * count * ((a.w.rows + Expand::kTokens - 1) / Expand::kTokens);
  launch(ex, "mla",
         {.grid = grid_of(items, 1, d.target.multiprocessors),
          .block = kGemmThreads,
          .shared_bytes = Shape::kSharedBytes,
          .pdl = true},
         gemm_sm90<DType::bf16, Expand::kTokens, Expand>, e);
}

}  // namespace
}  // namespace mla_cuda

void mla_cuda_expanded(const Exec& ex, const MlaArgs& a, const MlaDesc& d, void* scratch) {
  using namespace mla_cuda;
  Layout layout(scratch);
  const ExpandedArgs p{.seq = paged_arrays(a.seq, d.tokens, a.cache.shape),
                       .q = cuda::head_rows<const bf16>(a.q),
                       .out = cuda::head_rows<bf16>(a.out),
                       .cache = static_cast<const bf16*>(a.cache.data),
                       .n_prefill = static_cast<int>(d.n_prefill),
                       .H = static_cast<int>(d.heads),
                       .scale = a.scale,
                       .w = expanded_work(d, layout),
                       .faults = ex.faults};
  if (d.n_decode > 0) run_absorbed(ex, a, d, p.n_prefill, layout);
  const auto zero_blocks = static_cast<unsigned>(std::min<int64_t>(d.tokens, kMostZeroBlocks));
  cuda::launch(ex, "mla", {.grid = 1 + zero_blocks, .block = kThreads, .pdl = true}, number_prefills, p);
  const unsigned blocks = cuda::grid_of(p.w.rows, kRows);
  cuda::launch(ex, "mla", {.grid = blocks, .block = kThreads, .pdl = cuda::pdl_pays(d.target, blocks)},
               lay_side_by_side, p);
  for (int first = 0; first < p.H; first += static_cast<int>(p.w.heads)) {
    const int count = std::min(p.H - first, static_cast<int>(p.w.heads));
    expand(ex, p, d, a.kv_b, first, count);
    launch_expanded_attend(ex, p, d, first, count);
  }
}

}  // namespace kdelta
