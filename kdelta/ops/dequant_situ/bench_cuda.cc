#include "kdelta/ops/dequant_situ/variants.h"
#include "tests/gpu/bench.h"

namespace kdelta {
namespace {

void add_dequant_situ(const std::string& variant, int64_t T, int64_t N) {
  const DequantSituArgs shape{.x = AnyConstView(nullptr, DType::bf16, {T, 2 * N})};
  gpu_bench::add({.op = "dequant_situ",
                  .variant = variant,
                  .shape = str("T=", T, " N=", N, " bf16 dynamic"),
                  .cost = dequant_situ_cost(shape),
                  .make = [=](int sets) {
                    auto x = gpu_bench::filled(sets * T * N * 4), y = gpu_bench::filled(sets * T * N),
                         scale = gpu_bench::filled(T * 4);
                    return [=](const Exec& ex, int set) {
                      dequant_situ(ex, {.x = AnyConstView(x->view(DType::bf16, {sets * T, 2 * N})).rows(set * T, T),
                                        .y = View<int8_t>(static_cast<int8_t*>(y->data()) + set * T * N, {T, N}),
                                        .scale = scale->view<float>({T})});
                    };
                  }});
}

KDELTA_GPU_BENCH(dequant_situ) {
  for (const std::string& variant : gpu_bench::cuda_variants(dequant_situ_variants()))
    for (int64_t T : {1, 64, 8192}) add_dequant_situ(variant, T, 3072);
}

}  // namespace
}  // namespace kdelta
