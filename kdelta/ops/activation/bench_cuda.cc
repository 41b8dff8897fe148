#include "kdelta/ops/activation/variants.h"
#include "tests/gpu/bench.h"

namespace kdelta {
namespace {

void add_activation(const std::string& variant, ActivationKind kind, const char* name, int64_t T, int64_t N) {
  const ActivationArgs shape{.kind = kind,
                             .gate = AnyConstView(nullptr, DType::bf16, {T, N}),
                             .up = AnyConstView(nullptr, DType::bf16, {T, N}),
                             .out = AnyView(nullptr, DType::bf16, {T, N})};
  gpu_bench::add(
      {.op = "activation",
       .variant = variant,
       .shape = str(name, " T=", T, " N=", N, " bf16, gate and up packed"),
       .cost = activation_cost(shape),
       .make = [=](int sets) {
         auto in = gpu_bench::filled(sets * T * N * 4), out = gpu_bench::filled(sets * T * N * 2);
         return [=](const Exec& ex, int set) {
           const AnyConstView packed = AnyConstView(in->view(DType::bf16, {sets * T, 2 * N})).rows(set * T, T);
           activation(ex, {.kind = kind,
                           .beta = 4,
                           .linear_beta = 25,
                           .gate = packed.columns(0, N),
                           .up = packed.columns(N, N),
                           .out = out->view(DType::bf16, {sets * T, N}).rows(set * T, T)});
         };
       }});
}

KDELTA_GPU_BENCH(activation) {
  for (const std::string& variant : gpu_bench::cuda_variants(activation_variants()))
    for (int64_t T : {1, 64, 8192}) {
      add_activation(variant, ActivationKind::situ, "situ", T, 3072);
      add_activation(variant, ActivationKind::swiglu, "swiglu", T, 3072);
    }
}

}  // namespace
}  // namespace kdelta
