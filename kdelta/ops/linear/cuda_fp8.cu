// linear on Hopper with both sides MXFP8 (E4M3), a row to be forced, as cuda_wgmma measured quicker (notes.md): codes
// are multiplied as they are (cuda_fp8.cuh). A kernel in front quantises x, or takes the codes that it is, and lays
// scales out as the product reads them.
#include "kdelta/ops/linear/cuda_fp8.cuh"

#include "kdelta/ops/common/cuda/mx_chunk.cuh"
#include "kdelta/ops/common/cuda/views.cuh"
#include "kdelta/ops/linear/cuda_gemm.cuh"

namespace kdelta {
namespace {

constexpr int kThreads = 256;

struct Inputs {
  uint8_t* codes;  // [T, K], of an x that is to be quantised
  uint8_t* records;
  int64_t T, K;
  int steps;
  MxScaleRule rule;
};

// A block makes one record: kTokens tokens x 128 columns. In: bf16 to be quantised, or uint8_t, the scales of codes.
template <int kTokens, bool kAligned, class In>
__global__ void __launch_bounds__(kThreads) fp8_inputs(const __grid_constant__ Inputs p, Rows<const In> x) {
  pdl_trigger();
  pdl_wait();
  const int64_t first_token = int64_t{blockIdx.y} * kTokens, first_column = int64_t{blockIdx.x} * kFp8Columns;
  uint8_t* const record = p.records + (int64_t{blockIdx.y} * p.steps + blockIdx.x) * fp8_record_bytes(kTokens);
  float* const scales = reinterpret_cast<float*>(record);
  int plain = 1;
  const auto put = [&](int token, int block, float scale) {
    constexpr float kLeast = 0x1p-63f, kMost = 0x1p63f;
    plain &= scale >= kLeast && scale <= kMost;
    scales[block * kTokens + fp8_place(token)] = scale;
  };
  if constexpr (sizeof(In) > 1) {
    constexpr int kChunks = kFp8Columns / kChunk;
    for (int i = static_cast<int>(threadIdx.x); i < kTokens * kChunks; i += kThreads) {
      const int token = i / kChunks, chunk = i % kChunks;
      const int64_t t = first_token + token, k = first_column + chunk * kChunk;
      const bool inside = t < p.T && k < p.K;
      uint32_t code[kChunk];
      float scale;
      quantise_chunk<DType::f8_e4m3, kAligned>(x.at(inside ? t : 0) + (inside ? k : 0), inside, p.rule, code, scale);
      if (inside) {
        const uint32_t low = code[0] | code[1] << 8 | code[2] << 16 | code[3] << 24,
                       high = code[4] | code[5] << 8 | code[6] << 16 | code[7] << 24;
        *reinterpret_cast<uint2*>(p.codes + t * p.K + k) = make_uint2(low, high);
      }
      if (chunk % (kMxBlock / kChunk) == 0) put(token, chunk / (kMxBlock / kChunk), inside ? scale : 1.0f);
    }
  } else {
    for (int i = static_cast<int>(threadIdx.x); i < kTokens * kFp8Blocks; i += kThreads) {
      const int token = i / kFp8Blocks, block = i % kFp8Blocks;
      const int64_t t = first_token + token, k = first_column + block * kMxBlock;
      float scale = 1;
      if (t < p.T && k < p.K) {
        const uint32_t code = x.at(t)[k / kMxBlock];
        scale = code == 255 ? NAN : power_of_two(static_cast<int>(code) - 127);
      }
      put(token, block, scale);
    }
  }
  plain = __syncthreads_and(plain);
  if (threadIdx.x < 4)
    reinterpret_cast<uint32_t*>(record + fp8_record_bytes(kTokens) - 16)[threadIdx.x] = plain == 0 ? 1 : 0;
}

template <int kTokens>
struct Fp8Gemm : Gemm {
  const uint8_t* records;
  __device__ __forceinline__ const uint8_t* record(const Item& x, int step) const {
    return records + (int64_t{x.token / kTokens} * steps + step) * fp8_record_bytes(kTokens);
  }
};

template <int kTokens>
void run(const Exec& ex, const LinearArgs& a, const LinearDesc& d, const Gemm& g, const Inputs& inputs) {
  using Shape = Fp8Shape<kTokens>;
  Fp8Gemm<kTokens> work{g, inputs.records};
  const dim3 grid(static_cast<unsigned>(g.steps), static_cast<unsigned>(g.token_tiles));
  const Launch l{.grid = grid, .block = kThreads, .pdl = pdl_pays(d.target, int64_t{grid.x} * grid.y / 4)};
  const bool codes = a.x_scale.data != nullptr;
  if (codes)
    launch(ex, "linear", l, fp8_inputs<kTokens, false, uint8_t>, inputs, rows<const uint8_t>(a.x_scale));
  else
    dispatch_bool(reinterpret_cast<uintptr_t>(a.x.data) % 16 == 0 && a.x.stride[0] % 8 == 0, [&](auto aligned) {
      launch(ex, "linear", l, fp8_inputs<kTokens, aligned(), bf16>, inputs, rows<const bf16>(a.x));
    });
  work.token_boxes = codes ? tensor_map(ex.device, a.x.data, false, d.K, d.T, a.x.stride[0], 128, kTokens)
                           : tensor_map(ex.device, inputs.codes, false, d.K, d.T, d.K, 128, kTokens);
  int part = 0;
  const auto add = [&](const Matrix& w) {
    if (w.rows == 0) return;
    work.weight_boxes[part++] = tensor_map(ex.device, w.data, false, d.K, w.rows, w.row_bytes, 128, kGemmRows);
  };
  add(a.w);
  for (const LinearPart& p : a.more) add(p.w);
  const unsigned blocks = grid_of(int64_t{g.row_tiles} * g.token_tiles * g.splits, 1, d.target.multiprocessors);
  launch(ex, "linear", {.grid = blocks, .block = kGemmThreads, .shared_bytes = Shape::kSharedBytes, .pdl = true},
         fp8_sm90<kTokens, Fp8Gemm<kTokens>>, work);
  launch_add_splits(ex, g);
}

}  // namespace

void linear_cuda_fp8(const Exec& ex, const LinearArgs& a, const LinearDesc& d, void* scratch) {
  Gemm g{};
  g.parts = linear_parts(a, kGemmRows);
  if (d.T == 0 || g.parts.tiles() == 0) return;
  g.T = d.T, g.K = d.K;
  g.row_tiles = g.parts.tiles(), g.steps = static_cast<int>((d.K + kFp8Columns - 1) / kFp8Columns);
  const GemmPlan plan = fp8_plan(d.T, g.row_tiles, g.steps, d.target.multiprocessors);
  g.tile_tokens = plan.tokens, g.splits = plan.splits;
  g.token_tiles = static_cast<int>((d.T + plan.tokens - 1) / plan.tokens);
  auto* bytes = static_cast<uint8_t*>(scratch);
  g.sums = reinterpret_cast<float*>(bytes);
  const Fp8Scratch at = fp8_scratch(d.T, d.K, d.target.multiprocessors);
  const Inputs inputs{.codes = bytes + at.codes,
                      .records = bytes + at.records,
                      .T = d.T,
                      .K = d.K,
                      .steps = g.steps,
                      .rule = a.w.input.rule};
  if (plan.tokens == 64)
    run<64>(ex, a, d, g, inputs);
  else
    run<128>(ex, a, d, g, inputs);
}

}  // namespace kdelta
