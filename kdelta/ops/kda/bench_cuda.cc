#include "kdelta/ops/kda/variants.h"
#include "tests/gpu/bench.h"

namespace kdelta {
namespace {

struct KdaShape {
  int64_t H;
  std::vector<int> prefill;
  int decode = 0;
  DType pool = DType::f32;
  int tokens = 1;        // of a decode row; all drafts of the step before were kept
  bool records = false;  // drafts leave records; otherwise each has a slot
};

void add_kda(const std::string& variant, const KdaShape& x, const std::string& name) {
  const int64_t H = x.H, N = static_cast<int64_t>(x.prefill.size()) + x.decode;
  std::vector<int32_t> cu = {0};
  for (int len : x.prefill) cu.push_back(cu.back() + len);
  for (int i = 0; i < x.decode; ++i) cu.push_back(cu.back() + x.tokens);
  const int64_t T = cu.back(), channels = H * 128, columns = x.tokens, slots = x.records ? 1 : columns;
  KdaArgs shape{.q = AnyConstView(nullptr, DType::bf16, {T, H, 128}, {3 * channels, 128, 1}), .scale = 0.088388f};
  shape.k = shape.v = shape.q;
  shape.gate = AnyConstView(nullptr, DType::bf16, {T, H, 128});
  shape.beta = AnyConstView(nullptr, DType::f32, {T, H});
  shape.a_log = View<const float>(nullptr, {H}), shape.dt_bias = View<const float>(nullptr, {H, 128});
  shape.out = AnyView(nullptr, DType::bf16, {T, H, 128});
  shape.seq.n_prefill = static_cast<int>(x.prefill.size()), shape.seq.n_decode = x.decode;
  shape.seq.max_len = x.prefill.empty() ? columns : x.prefill[0];
  shape.state = AnyView(nullptr, x.pool, {N * slots + 1, H, 128, 128});
  // kda_cost() does not know what is replayed.
  const double replayed = x.records ? static_cast<double>(N * (columns - 1) * H * 384 * 4) : 0;
  float mark = 0;
  if (x.records) shape.records = View<float>(&mark, {N + 1, columns - 1, H, 384});
  std::vector<int32_t> no_slot(static_cast<size_t>(N * columns));
  shape.seq.slot = View<const int32_t>(no_slot.data(), {N, columns});
  Cost cost = kda_cost(shape);
  cost.bytes += replayed;
  gpu_bench::add(
      {.op = "kda",
       .variant = variant,
       .shape = name,
       .cost = cost,
       .roof = x.decode > 0 ? gpu_bench::RoofKind::update : gpu_bench::RoofKind::copy,
       .make = [=](int sets) {
         const int64_t state_bytes = channels * 128 * dtype_bytes(x.pool);
         auto qkv = gpu_bench::filled(sets * T * channels * 6), gate = gpu_bench::filled(sets * T * channels * 2);
         auto beta = gpu_bench::filled(sets * T * H * 4), out = gpu_bench::filled(sets * T * channels * 2);
         auto pool = gpu_bench::filled((sets * N * slots + 1) * state_bytes);
         const int64_t drafts = x.records ? columns - 1 : 0;
         auto records = gpu_bench::filled((sets * N + 1) * drafts * H * 384 * 4 + 4);
         auto small = gpu_bench::uploaded(std::vector<float>(static_cast<size_t>(channels + H), 0.1f));
         std::vector<int32_t> numbers(static_cast<size_t>(sets * N * columns));
         for (size_t i = 0; i < numbers.size(); ++i)
           numbers[i] = static_cast<int32_t>(x.records ? i / static_cast<size_t>(columns) + 1 : i + 1);
         auto slot = gpu_bench::uploaded(numbers), ends = gpu_bench::uploaded(cu);
         auto accepted = gpu_bench::uploaded(std::vector<int32_t>(static_cast<size_t>(N), x.tokens));
         auto fresh = gpu_bench::uploaded(std::vector<uint8_t>(static_cast<size_t>(N), 0));
         return [=](const Exec& ex, int set) {
           KdaArgs a = shape;
           auto* base = static_cast<bf16*>(qkv->data()) + set * T * channels * 3;
           a.q.data = base, a.k.data = base + channels, a.v.data = base + 2 * channels;
           a.gate.data = static_cast<bf16*>(gate->data()) + set * T * channels;
           a.beta.data = static_cast<float*>(beta->data()) + set * T * H;
           a.out.data = static_cast<bf16*>(out->data()) + set * T * channels;
           a.a_log.data = static_cast<float*>(small->data()), a.dt_bias.data = a.a_log.data + H;
           a.state = AnyView(pool->data(), x.pool, {sets * N * slots + 1, H, 128, 128});
           if (x.records) a.records = View<float>(static_cast<float*>(records->data()), {sets * N + 1, drafts, H, 384});
           a.seq.cu = ends->view<int32_t>({N + 1});
           a.seq.slot = View<const int32_t>(static_cast<int32_t*>(slot->data()) + set * N * columns, {N, columns});
           a.seq.accepted = accepted->view<int32_t>({N}), a.seq.fresh = fresh->view<uint8_t>({N});
           kda(ex, a);
         };
       }});
}

KDELTA_GPU_BENCH(kda) {
  for (const std::string& variant : gpu_bench::cuda_variants(kda_variants())) {
    if (variant == "cuda_chunk") {
      for (int B : {1, 8, 64, 128})
        for (DType pool : {DType::f32, DType::bf16})
          add_kda(variant, {.H = 12, .prefill = {}, .decode = B, .pool = pool},
                  str("decode H=12 B=", B, pool == DType::f32 ? " fp32 pool" : " bf16 pool"));
      for (int B : {1, 8, 64})
        for (DType pool : {DType::f32, DType::bf16})
          for (bool records : {true, false})
            add_kda(variant, {.H = 12, .prefill = {}, .decode = B, .pool = pool, .tokens = 8, .records = records},
                    str("verify H=12 B=", B, " 8 tokens ", records ? "records" : "slots",
                        pool == DType::f32 ? " fp32 pool" : " bf16 pool"));
      for (const auto& [H, T] :
           {std::pair(4, 8192), {8, 8192}, {12, 2048}, {12, 8192}, {12, 32768}, {12, 131072}, {32, 8192}, {96, 8192}})
        add_kda(variant, {.H = H, .prefill = {T}}, str("prefill H=", H, " T=", T));
      for (int H : {12, 96})
        add_kda(variant, {.H = H, .prefill = std::vector<int>(8, 1024)}, str("prefill H=", H, " 8 x 1024"));
    } else {
      add_kda(variant, {.H = 12, .prefill = {2048}}, "prefill H=12 T=2048");
      add_kda(variant, {.H = 12, .prefill = {}, .decode = 64}, "decode H=12 B=64 fp32 pool");
    }
  }
}

}  // namespace
}  // namespace kdelta
