#include "kdelta/ops/short_conv/variants.h"
#include "tests/gpu/bench.h"

namespace kdelta {
namespace {

struct Shape5 {
  int64_t prefill, len, decode, C;
  bool split;
};

void add_short_conv(const std::string& variant, const Shape5& z) {
  const int64_t T = z.prefill * z.len + z.decode, N = z.prefill + z.decode;
  const ShortConvArgs shape{.x = AnyConstView(nullptr, DType::bf16, {T, z.C}),
                            .weight = View<const float>(nullptr, {4, z.C}),
                            .seq = {.n_prefill = static_cast<int>(z.prefill), .n_decode = static_cast<int>(z.decode)}};
  gpu_bench::add(
      {.op = "short_conv",
       .variant = variant,
       .shape =
           str(z.prefill, " x ", z.len, " prefill, ", z.decode, " decode, C=", z.C, z.split ? " split" : " merged"),
       .cost = short_conv_cost(shape),
       .make = [=](int sets) {
         std::vector<int32_t> cu{0}, slot, accepted(static_cast<size_t>(N), 1);
         const std::vector<uint8_t> fresh(static_cast<size_t>(N), 0);
         for (int64_t n = 0; n < N; ++n) {
           cu.push_back(cu.back() + static_cast<int32_t>(n < z.prefill ? z.len : 1));
           slot.push_back(static_cast<int32_t>(n + 1));
         }
         auto x = gpu_bench::filled(sets * T * z.C * 2), out = gpu_bench::filled(sets * T * z.C * 2),
              weight = gpu_bench::filled(4 * z.C * 4), state = gpu_bench::filled(sets * (N + 1) * 3 * z.C * 2),
              d_cu = gpu_bench::uploaded(cu), d_slot = gpu_bench::uploaded(slot),
              d_accepted = gpu_bench::uploaded(accepted), d_fresh = gpu_bench::uploaded(fresh);
         return [=](const Exec& ex, int set) {
           ShortConvArgs a{.x = AnyConstView(x->view(DType::bf16, {sets * T, z.C})).rows(set * T, T),
                           .weight = weight->view<float>({4, z.C}),
                           .seq = {.cu = d_cu->view<int32_t>({N + 1}),
                                   .slot = d_slot->view<int32_t>({N, 1}),
                                   .accepted = d_accepted->view<int32_t>({N}),
                                   .fresh = d_fresh->view<uint8_t>({N}),
                                   .n_prefill = static_cast<int>(z.prefill),
                                   .n_decode = static_cast<int>(z.decode),
                                   .max_len = z.len},
                           .state = state->view(DType::bf16, {sets * (N + 1), 3, z.C}).slice(0, set * (N + 1), N + 1)};
           const AnyView merged = out->view(DType::bf16, {sets * T, z.C}).rows(set * T, T);
           if (!z.split) {
             a.out = merged;
           } else {  // three arrays of their own
             auto* base = static_cast<bf16*>(merged.data);
             for (int64_t i = 0; i < 3; ++i)
               a.split[static_cast<size_t>(i)] = AnyView(base + i * T * (z.C / 3), DType::bf16, {T, z.C / 3});
           }
           short_conv(ex, a);
         };
       }});
}

KDELTA_GPU_BENCH(short_conv) {
  for (const std::string& variant : gpu_bench::cuda_variants(short_conv_variants())) {
    add_short_conv(variant, {1, 8192, 0, 4608, true});
    add_short_conv(variant, {1, 8192, 0, 4608, false});
    add_short_conv(variant, {8, 1024, 0, 4608, true});
    add_short_conv(variant, {1, 8192, 0, 12288, true});
    for (int64_t B : {1, 8, 64, 128}) add_short_conv(variant, {0, 0, B, 4608, true});
  }
}

}  // namespace
}  // namespace kdelta
