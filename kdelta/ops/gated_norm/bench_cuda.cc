#include "kdelta/ops/gated_norm/variants.h"
#include "tests/gpu/bench.h"

namespace kdelta {
namespace {

void add_gated_norm(const std::string& variant, int64_t T, int64_t H) {
  constexpr int64_t D = 128;
  const GatedNormArgs shape{.x = AnyConstView(nullptr, DType::bf16, {T, H, D}),
                            .gate = AnyConstView(nullptr, DType::bf16, {T, H, D}),
                            .out = AnyView(nullptr, DType::bf16, {T, H, D})};
  gpu_bench::add({.op = "gated_norm",
                  .variant = variant,
                  .shape = str("T=", T, " H=", H, " D=128 bf16"),
                  .cost = gated_norm_cost(shape),
                  .make = [=](int sets) {
                    const int64_t bytes = sets * T * H * D * 2;
                    auto x = gpu_bench::filled(bytes), gate = gpu_bench::filled(bytes), out = gpu_bench::filled(bytes),
                         weight = gpu_bench::filled(D * 4);
                    return [=](const Exec& ex, int set) {
                      auto part = [&](const Buffer& b) {
                        return b.view(DType::bf16, {sets * T, H, D}).slice(0, set * T, T);
                      };
                      gated_norm(ex, {.x = part(*x),
                                      .gate = part(*gate),
                                      .weight = weight->view<float>({D}),
                                      .eps = 1e-5f,
                                      .out = part(*out)});
                    };
                  }});
}

KDELTA_GPU_BENCH(gated_norm) {
  for (const std::string& variant : gpu_bench::cuda_variants(gated_norm_variants()))
    for (int64_t H : {12, 32})
      for (int64_t T : {1, 64, 8192}) add_gated_norm(variant, T, H);
}

}  // namespace
}  // namespace kdelta
