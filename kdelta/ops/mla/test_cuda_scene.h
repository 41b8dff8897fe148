// Paged sequences on the device: the arrays of an EffectCase, filled anew for every replay with other lengths, pages
// and values within the same capacities. NaN lies wherever no token lives.
#pragma once

#include <algorithm>
#include <numeric>

#include "kdelta/ops/mla/variants.h"
#include "tests/gpu/effect_case.h"

namespace kdelta::test {

struct PagedRow {
  int32_t context, len;
};

struct MlaCudaSizes {
  int64_t H = 2, nope = 16, rope = 8, value = 16, latent = 32, page = 16;
  int64_t q_gap = 0, out_gap = 0;  // elements between rows of heads
  int64_t tail = 3;                // tokens that belong to nobody
  int64_t shift = 0;               // elements by which arrays lie off a 256-byte boundary
  float weight_scale = 0.3f;
};

template <class X>
struct PagedArraysOnHost {
  MlaCudaSizes s;
  std::vector<PagedRow> most;  // capacities: every fill stays within
  std::vector<PagedRow> rows;  // of the last fill
  int n_prefill;
  int64_t N, T, P, width, longest = 0, furthest = 0;
  Guarded<X> cache;
  Guarded<int32_t> cu, context, pages;
  int fills = 0;

  static int64_t pages_of(const PagedRow& r, int64_t G) { return (r.context + r.len + G - 1) / G; }
  static int64_t count(const std::vector<PagedRow>& rows, int64_t G) {
    int64_t n = 4;
    for (const PagedRow& r : rows) n += pages_of(r, G);
    return n;
  }
  static int64_t widest(const std::vector<PagedRow>& rows, int64_t G) {
    int64_t n = 1;
    for (const PagedRow& r : rows) n = std::max(n, pages_of(r, G) + 1);
    return n;
  }
  static int64_t tokens(const std::vector<PagedRow>& rows) {
    int64_t n = 0;
    for (const PagedRow& r : rows) n += r.len;
    return n;
  }

  PagedArraysOnHost(const MlaCudaSizes& sizes, std::vector<PagedRow> r, int prefill)
      : s(sizes),
        most(std::move(r)),
        n_prefill(prefill),
        N(static_cast<int64_t>(most.size())),
        T(tokens(most) + s.tail),
        P(widest(most, s.page)),
        width(s.latent + s.rope),
        cache({count(most, s.page), s.page, width}),
        cu({N + 1}),
        context({N}),
        pages({N, P}) {
    for (const PagedRow& x : most) {
      longest = std::max<int64_t>(longest, x.len);
      furthest = std::max<int64_t>(furthest, x.context + x.len);
    }
  }
  void add_to(EffectCase& c, Bound cache_bound = {}) {
    c.array("cache", cache, cache_bound, s.shift);
    c.array("cu", cu);
    c.array("context", context);
    c.array("pages", pages);
  }
  X* row(int64_t n, int64_t i) { return cache.data() + (pages[n * P + i / s.page] * s.page + i % s.page) * width; }
  // Lays the sequences out; `value(n, i, row)` writes the latents of position i.
  template <class F>
  void fill(Rng& rng, F&& value) {
    rows = most;
    if (fills++ % 4 != 0)  // replays: shorter ones
      for (PagedRow& r : rows) {
        r.context -= static_cast<int32_t>(rng() % static_cast<uint64_t>(std::min(r.context, 70) + 1));
        if (r.len > 1) r.len -= static_cast<int32_t>(rng() % 2);
      }
    std::vector<int32_t> free(static_cast<size_t>(cache.shape()[0] - 1));
    std::iota(free.begin(), free.end(), 1);
    std::shuffle(free.begin(), free.end(), rng);
    std::fill_n(pages.data(), pages.size(), -1);
    cu[0] = 0;
    for (int64_t n = 0; n < N; ++n) {
      const PagedRow& r = rows[static_cast<size_t>(n)];
      cu[n + 1] = cu[n] + r.len;
      context[n] = r.context;
      for (int64_t p = 0; p < pages_of(r, s.page); ++p) pages[n * P + p] = free.back(), free.pop_back();
      for (int64_t i = 0; i < r.context + r.len; ++i) value(n, i, row(n, i));
    }
  }
  PagedSequences at(const EffectCase::At& place) {
    return {.cu = place(cu),
            .context = place(context),
            .pages = place(pages),
            .n_prefill = n_prefill,
            .n_decode = static_cast<int>(N) - n_prefill,
            .max_len = longest,
            .max_context = furthest};
  }
};

// A call of mla.
template <class X>
struct MlaCudaCase {
  PagedArraysOnHost<X> p;
  DType format;
  int64_t D, weight_rows;
  Guarded<X> q, out;
  Guarded<uint8_t> weight, scales;
  EffectCase c;

  MlaCudaCase(const MlaCudaSizes& s, std::vector<PagedRow> rows, int prefill, DType weight_format, Bound bound)
      : p(s, std::move(rows), prefill),
        format(weight_format),
        D(s.nope + s.rope),
        weight_rows(s.H * (s.nope + s.value)),
        q({p.T, s.H, D + s.q_gap}),
        out({p.T, s.H, s.value + s.out_gap}),
        weight({weight_rows * ((s.latent * dtype_bits(format) + 7) / 8)}),
        scales({weight_rows * ((s.latent + 31) / 32)}) {
    c.array("q", q, {}, s.shift);
    c.array("out", out, bound, s.shift);
    c.array("weight", weight, {}, s.shift * dtype_bits(format) / 8);
    c.array("scales", scales);
    p.add_to(c);
    c.fill = [this](Rng& rng) { fill(rng); };
    c.call = [this](const Exec& ex, const EffectCase::At& at) { mla(ex, args(at)); };
  }
  void fill(Rng& rng) {
    std::normal_distribution<float> normal;
    for (int64_t t = 0; t < p.T - p.s.tail; ++t)
      for (int64_t i = 0; i < p.s.H * (D + p.s.q_gap); ++i)
        if (i % (D + p.s.q_gap) < D) q[t * p.s.H * (D + p.s.q_gap) + i] = from_float<X>(normal(rng));
    fill_weight(rng);
    p.fill(rng, [&](int64_t, int64_t, X* row) {
      for (int64_t l = 0; l < p.width; ++l) row[l] = from_float<X>(normal(rng));
    });
  }
  void fill_weight(Rng& rng) {
    const bool plain = format == DType::f32 || format == DType::bf16;
    // Keys of about the same size at every width and in every format: fp32 scores are as good as they are small.
    const int most = format == DType::f8_e5m2 ? 112 : format == DType::f8_e4m3 ? 119 : 123;
    for (int64_t i = 0; i < scales.size(); ++i)
      scales[i] = static_cast<uint8_t>(static_cast<uint64_t>(most) + rng() % 3);
    for (int64_t i = 0; i < weight.size() && !plain; ++i)
      weight[i] = static_cast<uint8_t>(rng() % (format == DType::f4_e2m1 ? 256 : 0x70));
    const float wide = std::sqrt(32.0f / static_cast<float>(std::max<int64_t>(p.s.latent, 32)));
    const float unit = p.s.weight_scale * wide * 1.7320508f / 32768;  // uniform, of that deviation
    const int64_t n = plain ? weight_rows * p.s.latent : 0;
    uint64_t bits = 0;
    for (int64_t i = 0; i < n; ++i, bits >>= 16) {
      if (i % 4 == 0) bits = rng();
      const float x = unit * static_cast<float>(static_cast<int16_t>(bits));
      const bf16 h = to_bf16(x);
      if (format == DType::f32)
        std::memcpy(&weight[i * 4], &x, 4);
      else
        std::memcpy(&weight[i * 2], &h, 2);
    }
  }
  MlaArgs args(const EffectCase::At& at) {
    const MlaCudaSizes& s = p.s;
    return {.q = AnyConstView(at(q)).columns(0, D),
            .cache = at(p.cache),
            .kv_b = dense_matrix(at(weight).data, format, weight_rows, s.latent,
                                 format == DType::f32 || format == DType::bf16 ? nullptr : at(scales).data),
            .seq = p.at(at),
            .nope = s.nope,
            .rope = s.rope,
            .value = s.value,
            .latent = s.latent,
            .scale = 1 / std::sqrt(static_cast<float>(D)),
            .out = AnyView(at(out)).columns(0, s.value)};
  }
};

// fp32 rows differ from the reference by roundings. The tensor cores take q', probabilities and weighted latents as
// bf16, or keys, probabilities and values: three roundings of 2^-9 in front of the output's own.
template <class X>
Bound mla_cuda_bound(const std::string& variant) {
  if (variant == "cuda_tensor" || variant == "cuda_expanded") return {.rms = 5e-3};
  return sizeof(X) == 4 ? Bound{.relative = 2e-5, .absolute = 2e-5}
                        : Bound{.relative = 0x1p-7, .absolute = 2e-5, .share = 2e-2};
}

// Every CUDA row that takes the call; the portable one takes all.
template <class X, class Change>
void check_mla(const MlaCudaSizes& s, const std::vector<PagedRow>& rows, int prefill, DType format, Change&& change) {
  SCOPED_TRACE(str("H ", s.H, " nope ", s.nope, " rope ", s.rope, " value ", s.value, " latent ", s.latent, " page ",
                   s.page, " context ", rows[0].context, " len ", rows[0].len, " prefill ", prefill, " weight ",
                   dtype_name(format), sizeof(X) == 4 ? " f32" : " bf16"));
  int ran = 0;
  for (const MlaVariant& row : mla_variants()) {
    if (machine_refusal(row, EffectCase::device_target()) != nullptr) continue;
    SCOPED_TRACE(row.name);
    MlaCudaCase<X> problem(s, rows, prefill, format, mla_cuda_bound<X>(row.name));
    change(problem);
    ran += problem.c.run_row("mla", row.name) ? 1 : 0;
  }
  EXPECT_GT(ran, 0);
}
}  // namespace kdelta::test
