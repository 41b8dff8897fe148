#include "kdelta/ops/norm/variants.h"
#include "tests/gpu/bench.h"

namespace kdelta {
namespace {

void add_norm(const std::string& variant, int64_t T, int64_t D) {
  const NormArgs shape{
      .x = AnyConstView(nullptr, DType::bf16, {T, D}), .out = AnyView(nullptr, DType::bf16, {T, D}), .eps = 1e-5f};
  gpu_bench::add({.op = "norm",
                  .variant = variant,
                  .shape = str("T=", T, " D=", D, " bf16"),
                  .cost = norm_cost(shape),
                  .make = [=](int sets) {
                    auto x = gpu_bench::filled(sets * T * D * 2), out = gpu_bench::filled(sets * T * D * 2),
                         weight = gpu_bench::filled(D * 4);
                    return [=](const Exec& ex, int set) {
                      norm(ex, {.x = x->view(DType::bf16, {sets * T, D}).rows(set * T, T),
                                .weight = weight->view<float>({D}),
                                .out = out->view(DType::bf16, {sets * T, D}).rows(set * T, T),
                                .eps = 1e-5f});
                    };
                  }});
}

KDELTA_GPU_BENCH(norm) {
  for (const std::string& variant : gpu_bench::cuda_variants(norm_variants())) {
    add_norm(variant, 1, 7168);
    add_norm(variant, 64, 7168);
    for (int64_t D : {2304, 7168}) add_norm(variant, 8192, D);
    add_norm(variant, 98304, 128);
  }
}

}  // namespace
}  // namespace kdelta
