#include "kdelta/ops/linear/cuda_plan.h"
#include "kdelta/ops/linear/variants.h"
#include "tests/gpu/bench.h"

namespace kdelta {
namespace {

struct Shape3 {
  int64_t T, N, K;
};

// `filled` gives codes of any value but NaN, and scales near 2^0 would be wanted: every scale byte is its own fill.
std::shared_ptr<Buffer> scales(int64_t bytes) {
  return gpu_bench::uploaded(std::vector<uint8_t>(static_cast<size_t>(bytes), 122));
}

void add_linear(const std::string& variant, DType w, const Shape3& s, const MxInput& input = {}) {
  const LinearArgs shape{.x = AnyConstView(nullptr, DType::bf16, {s.T, s.K}),
                         .w = dense_matrix(nullptr, w, s.N, s.K),
                         .out = AnyView(nullptr, DType::bf16, {s.T, s.N})};
  gpu_bench::add(
      {.op = "linear",
       .variant = variant,
       .shape = str("T=", s.T, " N=", s.N, " K=", s.K, " w ", dtype_name(w), input.quantised() ? " x to F8_E4M3" : ""),
       .cost = linear_cost(shape),
       .roof = gpu_bench::RoofKind::read,
       .make = [=](int sets) {
         const int64_t row = shape.w.row_bytes, scale_row = shape.w.scale_row_bytes;
         auto weights = gpu_bench::filled(sets * s.N * row), x = gpu_bench::filled(sets * s.T * s.K * 2),
              out = gpu_bench::filled(sets * s.T * s.N * 2), scale = scales(s.N * scale_row);
         return [=](const Exec& ex, int set) {
           const auto* data = static_cast<const uint8_t*>(weights->data()) + set * s.N * row;
           Matrix m = dense_matrix(data, w, s.N, s.K, static_cast<const uint8_t*>(scale->data()));
           m.input = input;
           linear(ex, {.x = x->view(DType::bf16, {sets * s.T, s.K}).rows(set * s.T, s.T),
                       .w = m,
                       .out = out->view(DType::bf16, {sets * s.T, s.N}).rows(set * s.T, s.T)});
         };
       }});
}

// Projections of Kimi K3 at 12 heads a rank: q|k|v, f_a, f_b, the output; and of Kimi-Linear.
KDELTA_GPU_BENCH(linear) {
  for (const std::string& variant : gpu_bench::cuda_variants(linear_variants())) {
    const bool plain = variant == "cuda", many = variant == "cuda_wgmma";
    if (many || variant == "cuda_fp8")  // W8A8: bf16 inputs are quantised on the way
      for (int64_t N : {4608, 7168})
        for (int64_t T : {32, 64, 256, 1024, 4096})
          add_linear(variant, DType::f8_e4m3, {T, N, 7168}, {DType::f8_e4m3, MxScaleRule::floor});
    if (variant == "cuda_fp8") continue;
    for (DType w : {DType::bf16, DType::f8_e4m3, DType::f4_e2m1})
      for (int64_t T : {1, 2, 4, 8, 16, 64, 256, 1024, 8192}) {
        if (plain && (T > 64 || w != DType::bf16)) continue;  // the parity path: a look at its cost is enough
        if (many && T <= most_skinny_tokens(w)) continue;
        if (variant == "cuda_mma" && T > 64) continue;
        add_linear(variant, w, {T, 4608, 7168});
      }
    if (plain || many) continue;
    for (int64_t T : {1, 8}) {
      add_linear(variant, DType::bf16, {T, 128, 7168});
      add_linear(variant, DType::bf16, {T, 1536, 128});
      add_linear(variant, DType::bf16, {T, 7168, 1536});
      add_linear(variant, DType::bf16, {T, 12288, 2304});
      for (int64_t n : {256, 288, 576}) add_linear(variant, DType::bf16, {T, n, 2304});
      add_linear(variant, DType::bf16, {T, 2304, 4096});
      add_linear(variant, DType::bf16, {T, 2304, 1024});
      add_linear(variant, DType::bf16, {T, 2048, 2304});
      add_linear(variant, DType::bf16, {T, 4096, 128});
    }
  }
}

}  // namespace
}  // namespace kdelta
