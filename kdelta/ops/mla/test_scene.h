// Data of the mla tests: sequences whose latents lie in shuffled pages, with NaN wherever no token lives (page 0, pages
// nobody owns, the tail of every last page), and the equation in fp64 over the same values.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "kdelta/ops/mla/variants.h"
#include "tests/support/op_test.h"

namespace kdelta::test {

struct MlaSizes {
  int64_t H = 2, nope = 16, rope = 8, value = 16, latent = 32, page = 16;
};

struct MlaSequence {
  int32_t context, len;
};

// A kv_b of any format and the fp32 values it stands for.
class MlaWeight {
 public:
  MlaWeight(DType dtype, int64_t rows, int64_t cols, uint64_t seed) {
    Rng rng(seed);
    std::normal_distribution<float> d(0, 0.3f);
    bytes_.resize(static_cast<size_t>(rows * cols * 4));
    scales_.resize(static_cast<size_t>(rows * cols / 32 + 1));
    for (uint8_t& s : scales_) s = static_cast<uint8_t>(124 + rng() % 3);
    for (int64_t i = 0; i < rows * cols; ++i) {
      const float x = d(rng);
      const bf16 h = to_bf16(x);
      if (dtype == DType::f32)
        std::memcpy(&bytes_[static_cast<size_t>(i * 4)], &x, 4);
      else if (dtype == DType::bf16)
        std::memcpy(&bytes_[static_cast<size_t>(i * 2)], &h, 2);
      else
        bytes_[static_cast<size_t>(i)] = static_cast<uint8_t>(rng() % (dtype == DType::f4_e2m1 ? 256 : 0x70));
    }
    matrix_ = dense_matrix(bytes_.data(), dtype, rows, cols,
                           dtype == DType::f32 || dtype == DType::bf16 ? nullptr : scales_.data());
    values_.resize(static_cast<size_t>(rows * cols));
    for (int64_t r = 0; r < rows; ++r) dequantize_row(matrix_, r, values_.data() + r * cols);
  }
  const Matrix& matrix() const { return matrix_; }
  float value(int64_t row, int64_t col) const { return values_[static_cast<size_t>(row * matrix_.cols + col)]; }

 private:
  std::vector<uint8_t> bytes_, scales_;
  std::vector<float> values_;
  Matrix matrix_;
};

template <class X>
struct MlaScene {
  static constexpr int64_t kExtra = 3;  // rows past the last sequence
  MlaSizes s;
  std::vector<MlaSequence> sequences;
  int n_prefill;
  int64_t N, T, longest = 0, furthest = 0, pages_per_row;
  std::vector<int64_t> offset;  // of a sequence's first position in latents
  Guarded<X> latents;           // [all positions of all sequences, L+R]
  Guarded<X> q, out, cache;
  Guarded<int32_t> cu, context, pages;
  MlaWeight weight;

  static int64_t positions(const std::vector<MlaSequence>& q) {
    int64_t n = 0;
    for (const auto& x : q) n += x.context + x.len;
    return n;
  }
  static int64_t tokens(const std::vector<MlaSequence>& q) {
    int64_t n = 0;
    for (const auto& x : q) n += x.len;
    return n;
  }
  static int64_t page_count(const std::vector<MlaSequence>& q, int64_t G) {
    int64_t n = 4;
    for (const auto& x : q) n += (x.context + x.len + G - 1) / G + 1;
    return n;
  }
  static int64_t widest(const std::vector<MlaSequence>& q, int64_t G) {
    int64_t n = 1;
    for (const auto& x : q) n = std::max(n, (x.context + x.len + G - 1) / G + 1);
    return n;
  }

  MlaScene(const MlaSizes& sizes, std::vector<MlaSequence> seqs, int prefill, DType weight_dtype = DTypeOf<X>::value,
           uint64_t seed = 1)
      : s(sizes),
        sequences(std::move(seqs)),
        n_prefill(prefill),
        N(static_cast<int64_t>(sequences.size())),
        T(tokens(sequences) + kExtra),
        pages_per_row(widest(sequences, s.page)),
        latents({positions(sequences), s.latent + s.rope}),
        q({T, s.H, s.nope + s.rope}),
        out({T, s.H, s.value}),
        cache({page_count(sequences, s.page), s.page, s.latent + s.rope}),
        cu({N + 1}),
        context({N}),
        pages({N, pages_per_row}),
        weight(weight_dtype, s.H * (s.nope + s.value), s.latent, seed) {
    Rng rng(seed + 17);
    fill_normal(latents, rng);
    fill_normal(q, rng);
    for (int64_t i = (T - kExtra) * s.H * (s.nope + s.rope); i < q.size(); ++i) q[i] = convert(NAN);
    lay_out(rng);
  }
  static X convert(float x) { return from_float<X>(x); }
  int64_t width() const { return s.latent + s.rope; }

  void lay_out(Rng& rng) {
    std::vector<int32_t> free(static_cast<size_t>(cache.shape()[0] - 1));
    std::iota(free.begin(), free.end(), 1);
    std::shuffle(free.begin(), free.end(), rng);
    std::fill_n(pages.data(), pages.size(), -1);
    std::fill_n(cache.data(), cache.size(), convert(NAN));
    int64_t position = 0;
    cu[0] = 0;
    for (int64_t n = 0; n < N; ++n) {
      const MlaSequence& x = sequences[static_cast<size_t>(n)];
      cu[n + 1] = cu[n] + x.len;
      context[n] = x.context;
      offset.push_back(position);
      longest = std::max<int64_t>(longest, x.len);
      furthest = std::max<int64_t>(furthest, x.context + x.len);
      for (int64_t p = 0; p < (x.context + x.len + s.page - 1) / s.page; ++p) {
        pages[n * pages_per_row + p] = free.back();
        free.pop_back();
      }
      for (int64_t i = 0; i < x.context + x.len; ++i) write(n, i);
      position += x.context + x.len;
    }
  }
  X* row(int64_t n, int64_t i) {
    return cache.data() + (pages[n * pages_per_row + i / s.page] * s.page + i % s.page) * width();
  }
  X* latent(int64_t n, int64_t i) { return latents.data() + (offset[static_cast<size_t>(n)] + i) * width(); }
  // Position i of sequence n from latents into its page.
  void write(int64_t n, int64_t i) { std::copy_n(latent(n, i), width(), row(n, i)); }

  PagedSequences seq() {
    return {.cu = cu,
            .context = context,
            .pages = pages,
            .n_prefill = n_prefill,
            .n_decode = static_cast<int>(N) - n_prefill,
            .max_len = longest,
            .max_context = furthest};
  }
  float scale() const { return 1 / std::sqrt(static_cast<float>(s.nope + s.rope)); }
  MlaArgs args() {
    return {.q = q.view(),
            .cache = cache.view(),
            .kv_b = weight.matrix(),
            .seq = seq(),
            .nope = s.nope,
            .rope = s.rope,
            .value = s.value,
            .latent = s.latent,
            .scale = scale(),
            .out = out.view()};
  }
  int64_t out_row() const { return s.H * s.value; }

  // The equation with k and v expanded, nothing shared with the code under test.
  std::vector<double> expected() {
    std::vector<double> want(static_cast<size_t>(T * out_row()), 0.0);
    for (int64_t h = 0; h < s.H; ++h)
      for (int64_t n = 0; n < N; ++n) expect_head(h, n, want);
    return want;
  }

 private:
  void expect_head(int64_t h, int64_t n, std::vector<double>& want) {
    const MlaSequence& x = sequences[static_cast<size_t>(n)];
    const int64_t total = x.context + x.len, wide = s.nope + s.value, D = s.nope + s.rope;
    std::vector<double> kv(static_cast<size_t>(total * wide));
    for (int64_t i = 0; i < total; ++i)
      for (int64_t r = 0; r < wide; ++r) {
        double sum = 0;
        for (int64_t l = 0; l < s.latent; ++l)
          sum += static_cast<double>(weight.value(h * wide + r, l)) * to_float(latent(n, i)[l]);
        kv[static_cast<size_t>(i * wide + r)] = sum;
      }
    std::vector<double> score(static_cast<size_t>(total));
    for (int64_t t = cu[n]; t < cu[n + 1]; ++t) {
      const int64_t length = x.context + t - cu[n] + 1;
      const X* query = q.data() + (t * s.H + h) * D;
      double best = -INFINITY, sum = 0;
      for (int64_t i = 0; i < length; ++i) {
        double dot = 0;
        for (int64_t d = 0; d < s.nope; ++d) dot += to_float(query[d]) * kv[static_cast<size_t>(i * wide + d)];
        for (int64_t r = 0; r < s.rope; ++r)
          dot += static_cast<double>(to_float(query[s.nope + r])) * to_float(latent(n, i)[s.latent + r]);
        score[static_cast<size_t>(i)] = dot * scale();
        best = std::max(best, score[static_cast<size_t>(i)]);
      }
      for (int64_t i = 0; i < length; ++i) sum += std::exp(score[static_cast<size_t>(i)] - best);
      for (int64_t v = 0; v < s.value; ++v) {
        double o = 0;
        for (int64_t i = 0; i < length; ++i)
          o += std::exp(score[static_cast<size_t>(i)] - best) / sum * kv[static_cast<size_t>(i * wide + s.nope + v)];
        want[static_cast<size_t>((t * s.H + h) * s.value + v)] = o;
      }
    }
  }
};

}  // namespace kdelta::test
