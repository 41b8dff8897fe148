#include "kdelta/ops/mx_quant/variants.h"
#include "tests/gpu/bench.h"

namespace kdelta {
namespace {

void add_quantize(const std::string& variant, DType format, int64_t T, int64_t N, bool situ) {
  const int64_t columns = situ ? 2 * N : N, bytes = mx_code_bytes(format, N), blocks = mx_scale_bytes(N);
  const MxQuantizeArgs shape{.format = format, .x = AnyConstView(nullptr, DType::bf16, {T, columns}), .situ = situ};
  gpu_bench::add({.op = "mx_quantize",
                  .variant = variant,
                  .shape = str("T=", T, " N=", N, " ", dtype_name(format), situ ? " of situ" : ""),
                  .cost = mx_quantize_cost(shape),
                  .make = [=](int sets) {
                    auto x = gpu_bench::filled(sets * T * columns * 2), codes = gpu_bench::filled(sets * T * bytes),
                         scale = gpu_bench::filled(sets * T * blocks);
                    return [=](const Exec& ex, int set) {
                      auto* c = static_cast<uint8_t*>(codes->data()) + set * T * bytes;
                      auto* s = static_cast<uint8_t*>(scale->data()) + set * T * blocks;
                      mx_quantize(ex, {.format = format,
                                       .rule = MxScaleRule::rceil,
                                       .x = AnyConstView(x->view(DType::bf16, {sets * T, columns})).rows(set * T, T),
                                       .codes = View<uint8_t>(c, {T, bytes}),
                                       .scale = View<uint8_t>(s, {T, blocks}),
                                       .situ = situ});
                    };
                  }});
}

KDELTA_GPU_BENCH(mx_quantize) {
  for (const std::string& variant : gpu_bench::cuda_variants(mx_quantize_variants()))
    for (int64_t T : {1, 64, 8192}) {
      add_quantize(variant, DType::f8_e4m3, T, 7168, false);
      add_quantize(variant, DType::f8_e4m3, T, 3072, true);
    }
}

}  // namespace
}  // namespace kdelta
