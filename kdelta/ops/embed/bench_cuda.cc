#include "kdelta/ops/embed/variants.h"
#include "tests/gpu/bench.h"

namespace kdelta {
namespace {

void add_embed(const std::string& variant, int64_t T, int64_t D) {
  constexpr int64_t kVocabulary = 163840;
  const EmbedArgs shape{.token = View<const int32_t>(nullptr, {T}),
                        .table = {.dtype = DType::bf16, .rows = kVocabulary, .cols = D},
                        .out = AnyView(nullptr, DType::bf16, {T, D})};
  gpu_bench::add({.op = "embed",
                  .variant = variant,
                  .shape = str("T=", T, " D=", D, " bf16"),
                  .cost = embed_cost(shape),
                  .make = [=](int sets) {
                    std::vector<int32_t> ids(static_cast<size_t>(sets * T));
                    for (size_t i = 0; i < ids.size(); ++i)
                      ids[i] = static_cast<int32_t>(i * 7919 % static_cast<size_t>(kVocabulary));
                    auto table = gpu_bench::filled(kVocabulary * D * 2), out = gpu_bench::filled(sets * T * D * 2),
                         token = gpu_bench::uploaded(ids);
                    return [=](const Exec& ex, int set) {
                      embed(ex,
                            {.token = View<const int32_t>(static_cast<const int32_t*>(token->data()) + set * T, {T}),
                             .table = dense_matrix(table->data(), DType::bf16, kVocabulary, D),
                             .out = out->view(DType::bf16, {sets * T, D}).rows(set * T, T)});
                    };
                  }});
}

KDELTA_GPU_BENCH(embed) {
  for (const std::string& variant : gpu_bench::cuda_variants(embed_variants()))
    for (int64_t T : {1, 64, 8192}) add_embed(variant, T, 7168);
}

}  // namespace
}  // namespace kdelta
