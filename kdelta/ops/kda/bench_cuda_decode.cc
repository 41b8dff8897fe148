// The fused decode step beside its three ops.
#include "kdelta/ops/gated_norm/gated_norm.h"
#include "kdelta/ops/kda/decode_variants.h"
#include "kdelta/ops/short_conv/short_conv.h"
#include "tests/gpu/bench.h"

namespace kdelta {
namespace {

void run_parts(const Exec& ex, const KdaDecodeArgs& a, const AnyView& mixed, const AnyView& core) {
  const int64_t H = a.decay.dim(1), P = H * 128;
  short_conv(ex, {.x = a.qkv, .weight = a.conv_weight, .seq = a.seq, .state = a.window, .out = mixed});
  kda(ex, {.q = mixed.columns(0, P).split_last(H, 128),
           .k = mixed.columns(P, P).split_last(H, 128),
           .v = mixed.columns(2 * P, P).split_last(H, 128),
           .gate = a.decay,
           .beta = a.beta,
           .a_log = a.a_log,
           .dt_bias = a.dt_bias,
           .scale = a.scale,
           .seq = a.seq,
           .state = a.state,
           .out = core});
  gated_norm(ex, {.x = core, .gate = a.gate, .weight = a.norm_weight, .eps = a.norm_eps, .out = a.out});
}

void add_decode(const std::string& variant, int64_t H, int64_t B, DType pool) {
  const int64_t P = H * 128;
  KdaDecodeArgs shape{.qkv = AnyConstView(nullptr, DType::bf16, {B, 3 * P}),
                      .conv_weight = View<const float>(nullptr, {4, 3 * P}),
                      .decay = AnyConstView(nullptr, DType::bf16, {B, H, 128}),
                      .beta = AnyConstView(nullptr, DType::f32, {B, H}),
                      .a_log = View<const float>(nullptr, {H}),
                      .dt_bias = View<const float>(nullptr, {H, 128}),
                      .scale = 0.088388f,
                      .gate = AnyConstView(nullptr, DType::bf16, {B, H, 128}),
                      .norm_weight = View<const float>(nullptr, {128}),
                      .norm_eps = 1e-5f,
                      .seq = {.n_decode = static_cast<int>(B), .max_len = 1},
                      .state = AnyView(nullptr, pool, {B + 1, H, 128, 128}),
                      .window = AnyView(nullptr, DType::bf16, {B + 1, 3, 3 * P}),
                      .out = AnyView(nullptr, DType::bf16, {B, H, 128})};
  gpu_bench::add({.op = "kda_decode",
                  .variant = variant,
                  .shape = str("H=", H, " B=", B, " ", dtype_name(pool), " pool"),
                  .cost = kda_decode_cost(shape),
                  .roof = gpu_bench::RoofKind::update,
                  .make = [=](int sets) {
                    std::vector<int32_t> cu{0}, slot;
                    for (int64_t n = 0; n < B; ++n)
                      cu.push_back(cu.back() + 1), slot.push_back(static_cast<int32_t>(n + 1));
                    auto qkv = gpu_bench::filled(sets * B * 3 * P * 2), decay = gpu_bench::filled(sets * B * P * 2),
                         gate = gpu_bench::filled(sets * B * P * 2), beta = gpu_bench::filled(sets * B * H * 4),
                         out = gpu_bench::filled(sets * B * P * 2), mixed = gpu_bench::filled(sets * B * 3 * P * 2),
                         core = gpu_bench::filled(sets * B * P * 2), taps = gpu_bench::filled(4 * 3 * P * 4),
                         state = gpu_bench::filled(sets * (B + 1) * P * 128 * dtype_bytes(pool)),
                         window = gpu_bench::filled(sets * (B + 1) * 9 * P * 2),
                         small = gpu_bench::uploaded(std::vector<float>(static_cast<size_t>(P + 128), 0.1f)),
                         d_cu = gpu_bench::uploaded(cu), d_slot = gpu_bench::uploaded(slot),
                         accepted = gpu_bench::uploaded(std::vector<int32_t>(static_cast<size_t>(B), 1)),
                         fresh = gpu_bench::uploaded(std::vector<uint8_t>(static_cast<size_t>(B), 0));
                    return [=](const Exec& ex, int set) {
                      const auto rows = [&](const Buffer& b, int64_t width) {
                        return b.view(DType::bf16, {sets * B, width}).rows(set * B, B);
                      };
                      KdaDecodeArgs a = shape;
                      a.qkv = rows(*qkv, 3 * P), a.decay = rows(*decay, P).split_last(H, 128);
                      a.gate = rows(*gate, P).split_last(H, 128), a.out = rows(*out, P).split_last(H, 128);
                      a.beta = beta->view(DType::f32, {sets * B, H}).rows(set * B, B);
                      a.conv_weight = taps->view<float>({4, 3 * P});
                      auto* f = static_cast<float*>(small->data());
                      a.a_log.data = a.dt_bias.data = a.norm_weight.data = f;
                      a.state = state->view(pool, {sets * (B + 1), H, 128, 128}).slice(0, set * (B + 1), B + 1);
                      a.window = window->view(DType::bf16, {sets * (B + 1), 3, 3 * P}).slice(0, set * (B + 1), B + 1);
                      a.seq.cu = d_cu->view<int32_t>({B + 1}), a.seq.slot = d_slot->view<int32_t>({B, 1});
                      a.seq.accepted = accepted->view<int32_t>({B}), a.seq.fresh = fresh->view<uint8_t>({B});
                      if (variant == "parts")
                        run_parts(ex, a, rows(*mixed, 3 * P), rows(*core, P).split_last(H, 128));
                      else
                        kda_decode(ex, a);
                    };
                  }});
}

KDELTA_GPU_BENCH(kda_decode) {
  std::vector<std::string> variants = gpu_bench::cuda_variants(kda_decode_variants());
  variants.push_back("parts");
  for (const std::string& variant : variants)
    for (const auto& [H, B] : {std::pair(12, 1), {12, 8}, {12, 64}, {12, 128}, {32, 1}, {32, 8}, {32, 64}})
      for (DType pool : {DType::f32, DType::bf16}) add_decode(variant, H, B, pool);
}

}  // namespace
}  // namespace kdelta
