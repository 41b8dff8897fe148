#include <numeric>

#include "kdelta/ops/mla/variants.h"
#include "tests/gpu/bench.h"

namespace kdelta {
namespace {

constexpr int64_t kNope = 128, kRope = 64, kValue = 128, kLatent = 512, kPage = 64, kWidth = kLatent + kRope;

struct Shape {
  int64_t H, sequences, context, len;
  bool prefill;
  int64_t pages() const { return (context + len + kPage - 1) / kPage; }
  int64_t T() const { return sequences * len; }
};

MlaArgs args(const Shape& s, int64_t pool_pages) {
  return {.q = AnyConstView(nullptr, DType::bf16, {s.T(), s.H, kNope + kRope}),
          .cache = AnyConstView(nullptr, DType::bf16, {pool_pages, kPage, kWidth}),
          .kv_b = dense_matrix(nullptr, DType::bf16, s.H * (kNope + kValue), kLatent),
          .seq = {.cu = View<const int32_t>(nullptr, {s.sequences + 1}),
                  .context = View<const int32_t>(nullptr, {s.sequences}),
                  .pages = View<const int32_t>(nullptr, {s.sequences, s.pages()}),
                  .n_prefill = static_cast<int>(s.prefill ? s.sequences : 0),
                  .n_decode = static_cast<int>(s.prefill ? 0 : s.sequences),
                  .max_len = s.len,
                  .max_context = s.context + s.len},
          .nope = kNope,
          .rope = kRope,
          .value = kValue,
          .latent = kLatent,
          .scale = 0.0721687836f,
          .out = AnyView(nullptr, DType::bf16, {s.T(), s.H, kValue})};
}

// Sequences whose pages lie in the order of a linear congruence over the whole pool, so that no two follow each other.
void add_mla(const std::string& variant, const Shape& s) {
  const int64_t weights = s.H * (kNope + kValue) * kLatent * 2, queries = s.T() * s.H * (kNope + kRope) * 2;
  gpu_bench::add({.op = "mla",
                  .variant = variant,
                  .shape = str(s.prefill ? "prefill" : "decode", " B=", s.sequences, " H=", s.H, " context=", s.context,
                               " T=", s.T(), " bf16"),
                  .cost = mla_cost(args(s, 1)),
                  .roof = gpu_bench::RoofKind::read,
                  .make = [=](int sets) {
                    const int64_t used = sets * s.sequences * s.pages(), pool = used + 1;
                    std::vector<int32_t> cu, context(static_cast<size_t>(s.sequences), static_cast<int32_t>(s.context));
                    for (int64_t n = 0; n <= s.sequences; ++n) cu.push_back(static_cast<int32_t>(n * s.len));
                    int64_t step = 7919;
                    while (std::gcd(step, used) != 1) ++step;
                    std::vector<int32_t> pages;
                    for (int64_t i = 0; i < used; ++i) pages.push_back(static_cast<int32_t>(1 + i * step % used));
                    auto cache = gpu_bench::filled(pool * kPage * kWidth * 2), q = gpu_bench::filled(sets * queries),
                         out = gpu_bench::filled(sets * s.T() * s.H * kValue * 2),
                         kv_b = gpu_bench::filled(sets * weights);
                    auto begins = gpu_bench::uploaded(cu), contexts = gpu_bench::uploaded(context),
                         numbers = gpu_bench::uploaded(pages);
                    return [=](const Exec& ex, int set) {
                      MlaArgs a = args(s, pool);
                      a.q.data = static_cast<char*>(q->data()) + set * queries;
                      a.cache.data = cache->data();
                      a.kv_b.data = static_cast<char*>(kv_b->data()) + set * weights;
                      a.seq.cu.data = static_cast<const int32_t*>(begins->data());
                      a.seq.context.data = static_cast<const int32_t*>(contexts->data());
                      a.seq.pages.data = static_cast<const int32_t*>(numbers->data()) + set * s.sequences * s.pages();
                      a.out.data = static_cast<char*>(out->data()) + set * s.T() * s.H * kValue * 2;
                      mla(ex, a);
                    };
                  }});
}

KDELTA_GPU_BENCH(mla) {
  for (const std::string& variant : gpu_bench::cuda_variants(mla_variants())) {
    const bool slow = variant == "cuda_portable", expanded = variant == "cuda_expanded";
    for (int64_t T : {512, 2048, 8192, 32768}) {
      if (slow || (!expanded && T > 8192)) continue;  // a quarter of a second
      add_mla(variant, {32, 1, 0, T, true});
    }
    if (!slow) add_mla(variant, {32, 1, 6144, 2048, true});
    if (expanded) {
      add_mla(variant, {32, 8, 0, 1024, true});
      add_mla(variant, {32, 1, 122880, 8192, true});
      add_mla(variant, {12, 1, 0, 8192, true});
      continue;
    }
    for (int64_t B : {1, 8, 64}) {
      if (slow && B > 8) continue;  // milliseconds, known to be no contender
      add_mla(variant, {32, B, 8191, 1, false});
    }
    if (slow) continue;
    add_mla(variant, {32, 64, 1023, 1, false});
    add_mla(variant, {12, 8, 8191, 1, false});
    add_mla(variant, {96, 8, 8191, 1, false});
    add_mla(variant, {32, 8, 8188, 4, false});
    add_mla(variant, {32, 1, 131071, 1, false});
  }
}

}  // namespace
}  // namespace kdelta
