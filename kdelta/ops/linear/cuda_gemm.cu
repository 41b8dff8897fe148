// linear on Hopper for many tokens: the persistent wgmma product of common/cuda/gemm_sm90.cuh over all parts.
#include "kdelta/ops/linear/cuda_gemm.cuh"

namespace kdelta {
namespace {

template <DType kFormat, int kTokens>
void run(const Exec& ex, const LinearArgs& a, const LinearDesc& d, Gemm& g) {
  using Shape = GemmShape<kFormat, kTokens>;
  g.token_boxes = tensor_map(ex.device, a.x.data, true, d.K, d.T, a.x.stride[0] * 2, 128, kTokens);
  int part = 0;
  const auto add = [&](const Matrix& w) {
    if (w.rows == 0) return;
    const int64_t row = kFormat == DType::f4_e2m1 ? d.K / 2 : d.K;
    g.weight_boxes[part++] =
        tensor_map(ex.device, w.data, kFormat == DType::bf16, row, w.rows, w.row_bytes, Shape::kRowBytes, kGemmRows);
  };
  add(a.w);
  for (const LinearPart& p : a.more) add(p.w);
  const unsigned grid = grid_of(int64_t{g.row_tiles} * g.token_tiles * g.splits, 1, d.target.multiprocessors);
  launch(ex, "linear", {.grid = grid, .block = kGemmThreads, .shared_bytes = Shape::kSharedBytes, .pdl = true},
         gemm_sm90<kFormat, kTokens, GemmOf<kTokens>>, GemmOf<kTokens>{g});
  launch_add_splits(ex, g);
}

}  // namespace

void linear_cuda_wgmma(const Exec& ex, const LinearArgs& a, const LinearDesc& d, void* scratch) {
  Gemm g{};
  g.parts = linear_parts(a, kGemmRows);
  if (d.T == 0 || g.parts.tiles() == 0) return;
  g.sums = static_cast<float*>(scratch);
  g.T = d.T, g.K = d.K;
  g.row_tiles = g.parts.tiles(), g.steps = static_cast<int>((d.K + kGemmColumns - 1) / kGemmColumns);
  const GemmPlan plan = gemm_plan(d.T, g.row_tiles, g.steps, d.target.multiprocessors);
  g.tile_tokens = plan.tokens, g.splits = plan.splits;
  g.token_tiles = static_cast<int>((d.T + plan.tokens - 1) / plan.tokens);
  dispatch_weights(d.w, [&](auto format) {
    if constexpr (format() != DType::f32) {
      if (plan.tokens == 32) return run<format(), 32>(ex, a, d, g);
      if (plan.tokens == 64) return run<format(), 64>(ex, a, d, g);
      if (plan.tokens == 128) return run<format(), 128>(ex, a, d, g);
      run<format(), 256>(ex, a, d, g);
    }
  });
}

}  // namespace kdelta
