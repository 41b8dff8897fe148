#include "bench/support/bench.h"
#include "kdelta/ops/mla/variants.h"

namespace kdelta {
namespace {

constexpr int64_t kNope = 128, kRope = 64, kValue = 128, kLatent = 512, kPage = 64;

struct Shape {
  int64_t H, context, len;
  bool prefill;
};

// One sequence at the head sizes of both releases, its pages in order.
struct Data {
  Buffer q, cache, weight, out;
  std::vector<int32_t> cu, context, pages;
  Shape s;

  explicit Data(const Shape& shape)
      : q(Device{}, shape.len * shape.H * (kNope + kRope) * 2),
        cache(Device{}, (page_count(shape) + 1) * kPage * (kLatent + kRope) * 2),
        weight(Device{}, shape.H * (kNope + kValue) * kLatent * 2),
        out(Device{}, shape.len * shape.H * kValue * 2),
        cu{0, static_cast<int32_t>(shape.len)},
        context{static_cast<int32_t>(shape.context)},
        s(shape) {
    for (Buffer* b : {&q, &cache, &weight}) bench::fill(b->data(), b->bytes());
    for (int64_t p = 1; p <= page_count(shape); ++p) pages.push_back(static_cast<int32_t>(p));
  }
  static int64_t page_count(const Shape& s) { return (s.context + s.len + kPage - 1) / kPage; }
};

MlaArgs args(const Shape& s, Data* d) {
  const int64_t P = Data::page_count(s);
  auto at = [&](Buffer Data::*b) { return d == nullptr ? nullptr : (d->*b).data(); };
  auto ints = [&](std::vector<int32_t> Data::*v) { return d == nullptr ? nullptr : (d->*v).data(); };
  return {.q = AnyConstView(at(&Data::q), DType::bf16, {s.len, s.H, kNope + kRope}),
          .cache = AnyConstView(at(&Data::cache), DType::bf16, {P + 1, kPage, kLatent + kRope}),
          .kv_b = dense_matrix(at(&Data::weight), DType::bf16, s.H * (kNope + kValue), kLatent),
          .seq = {.cu = View<const int32_t>(ints(&Data::cu), {2}),
                  .context = View<const int32_t>(ints(&Data::context), {1}),
                  .pages = View<const int32_t>(ints(&Data::pages), {1, P}),
                  .n_prefill = s.prefill,
                  .n_decode = !s.prefill,
                  .max_len = s.len,
                  .max_context = s.context + s.len},
          .nope = kNope,
          .rope = kRope,
          .value = kValue,
          .latent = kLatent,
          .scale = 0.0721687836f,
          .out = AnyView(at(&Data::out), DType::bf16, {s.len, s.H, kValue})};
}

void add_mla(const std::string& variant, const Shape& s, const bench::Roof& roof) {
  bench::add({.op = "mla",
              .variant = variant,
              .shape = str(s.prefill ? "prefill" : "decode", " H=", s.H, " context=", s.context, " T=", s.len, " bf16"),
              .cost = mla_cost(args(s, nullptr)),
              .roof = roof,
              .make = [=] {
                auto data = std::make_shared<Data>(s);
                return [=] { mla(bench::exec_with("mla", variant), args(s, data.get())); };
              }});
}

KDELTA_BENCH(mla) {
  const bench::Roof read{bench::RoofKind::read, int64_t{512} << 20}, fma{bench::RoofKind::fma_f32};
  for (const std::string& variant : bench::fast_variants(mla_variants())) {
    // Few heads: the cache's bytes bound a step. Many: arithmetic does, 181 flops a byte at 96 heads.
    add_mla(variant, {2, 262144, 1, false}, read);
    for (int64_t H : {12, 32, 96}) add_mla(variant, {H, 8192, 1, false}, fma);
    // A short context: what counts is that kv_b is read once, 25 MB.
    for (int64_t len : {1, 4}) add_mla(variant, {96, 512, len, false}, read);
    add_mla(variant, {32, 8192, 1, true}, fma);
    add_mla(variant, {4, 0, 512, true}, fma);
    add_mla(variant, {4, 0, 2048, true}, fma);
    add_mla(variant, {4, 8192, 1024, true}, fma);
  }
}

}  // namespace
}  // namespace kdelta
