#include "kdelta/ops/attn_res/variants.h"
#include "tests/gpu/bench.h"

namespace kdelta {
namespace {

void add_attn_res(const std::string& variant, int64_t n, int64_t T, bool normed, bool adds) {
  constexpr int64_t D = 7168;
  int mark = 0;  // cost looks at which operands there are
  AttnResArgs shape{
      .n = n, .sum = AnyConstView(nullptr, DType::bf16, {T, D}), .out = AnyView(nullptr, DType::bf16, {T, D})};
  if (adds) shape.addend = AnyConstView(&mark, DType::bf16, {T, D});
  gpu_bench::add(
      {.op = "attn_res",
       .variant = variant,
       .shape = str("T=", T, " n=", n, " D=7168 bf16", adds ? " added" : "", normed ? " normed" : ""),
       .cost = attn_res_cost(shape),
       .make = [=](int sets) {
         const int64_t bytes = sets * T * D * 2;
         auto blocks = gpu_bench::filled(n * bytes), sum = gpu_bench::filled(bytes), out = gpu_bench::filled(bytes),
              addend = gpu_bench::filled(adds ? bytes : 4), sum_out = gpu_bench::filled(adds ? bytes : 4),
              score = gpu_bench::filled(D * 4), weight = gpu_bench::filled(D * 4);
         return [=](const Exec& ex, int set) {
           auto part = [&](const Buffer& b) { return b.view(DType::bf16, {sets * T, D}).rows(set * T, T); };
           attn_res(ex, {.blocks = AnyConstView(blocks->view(DType::bf16, {n, sets * T, D})).slice(1, set * T, T),
                         .n = n,
                         .sum = part(*sum),
                         .addend = adds ? AnyConstView(part(*addend)) : AnyConstView(),
                         .sum_out = adds ? part(*sum_out) : AnyView(),
                         .score_weight = score->view<float>({D}),
                         .eps = 1e-5f,
                         .norm_weight = normed ? weight->view<float>({D}) : View<float>(),
                         .norm_eps = 1e-5f,
                         .out = part(*out)});
         };
       }});
}

KDELTA_GPU_BENCH(attn_res) {
  for (const std::string& variant : gpu_bench::cuda_variants(attn_res_variants()))
    for (int64_t T : {1, 8, 32, 64, 8192})
      for (bool normed : {false, true})
        for (bool adds : {false, true})
          if (T <= 32 || variant != "cuda_cluster") add_attn_res(variant, 8, T, normed, adds);
}

}  // namespace
}  // namespace kdelta
