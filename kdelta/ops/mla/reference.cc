// The definition of mla, in fp64: every token of every head on its own, over the latents as they are.
#include <cmath>
#include <cstring>

#include "kdelta/ops/common/dispatch.h"
#include "kdelta/ops/mla/paged.h"
#include "kdelta/ops/mla/variants.h"

namespace kdelta {
namespace {

struct Work {
  double* qa;     // [L+R] W_UK^T q_nope | q_rope
  double* lat;    // [L]
  double* score;  // [max_context]
  float* weight;  // [nope + value, L] of one head
};

template <class Cache>
double attend(const MlaArgs& a, const Cache* cache, int64_t n, int64_t length, const Work& w) {
  const int64_t L = a.latent, R = a.rope, G = a.cache.dim(1);
  double best = -INFINITY, total = 0;
  for (int64_t s = 0; s < length; ++s) {
    const Cache* row = cache_row(cache, a.seq, G, L + R, n, s);
    double dot = 0;
    for (int64_t l = 0; l < L + R; ++l) dot += w.qa[l] * static_cast<double>(to_float(row[l]));
    w.score[s] = dot * static_cast<double>(a.scale);
    best = std::fmax(best, w.score[s]);
  }
  std::fill(w.lat, w.lat + L, 0.0);
  for (int64_t s = 0; s < length; ++s) {
    const Cache* row = cache_row(cache, a.seq, G, L + R, n, s);
    const double p = std::exp(w.score[s] - best);
    total += p;
    for (int64_t l = 0; l < L; ++l) w.lat[l] += p * static_cast<double>(to_float(row[l]));
  }
  return total;
}

template <class X, class Cache>
void token(const MlaArgs& a, int64_t h, int64_t n, int64_t t, const Work& w) {
  const int64_t L = a.latent;
  const X* q = a.q.at<const X>(t, h);
  std::fill(w.qa, w.qa + L, 0.0);
  for (int64_t d = 0; d < a.nope; ++d)
    for (int64_t l = 0; l < L; ++l)
      w.qa[l] += static_cast<double>(to_float(q[d])) * static_cast<double>(w.weight[d * L + l]);
  for (int64_t r = 0; r < a.rope; ++r) w.qa[L + r] = static_cast<double>(to_float(q[a.nope + r]));
  const int64_t length = a.seq.context.data[n] + (t - a.seq.cu.data[n]) + 1;
  const double total = attend(a, static_cast<const Cache*>(a.cache.data), n, length, w);
  X* out = a.out.at<X>(t, h);
  for (int64_t v = 0; v < a.value; ++v) {
    double sum = 0;
    for (int64_t l = 0; l < L; ++l) sum += static_cast<double>(w.weight[(a.nope + v) * L + l]) * w.lat[l];
    out[v] = from_float<X>(static_cast<float>(sum / total));
  }
}

template <class X, class Cache>
void heads(const MlaArgs& a, const Work& w) {
  const int64_t live = a.seq.n_prefill + a.seq.n_decode, rows = a.nope + a.value;
  const int32_t* cu = a.seq.cu.data;
  for (int64_t h = 0; h < a.q.dim(1); ++h) {
    for (int64_t r = 0; r < rows; ++r) dequantize_row(a.kv_b, h * rows + r, w.weight + r * a.latent);
    for (int64_t n = 0; n < live; ++n)
      for (int64_t t = cu[n]; t < cu[n + 1]; ++t) token<X, Cache>(a, h, n, t, w);
    for (int64_t t = cu[live]; t < a.q.dim(0); ++t)
      std::memset(a.out.at<X>(t, h), 0, static_cast<size_t>(a.value) * sizeof(X));
  }
}

}  // namespace

int64_t mla_reference_scratch(const MlaDesc& d) {
  return 8 * (2 * d.latent + d.rope + d.max_context) + 4 * (d.nope + d.value) * d.latent;
}

void mla_reference(const Exec&, const MlaArgs& a, const MlaDesc& d, void* scratch) {
  Work w{};
  w.qa = static_cast<double*>(scratch);
  w.lat = w.qa + d.latent + d.rope;
  w.score = w.lat + d.latent;
  w.weight = reinterpret_cast<float*>(w.score + d.max_context);
  dispatch_activation(a.q.dtype, [&](auto x) {
    dispatch_activation(a.cache.dtype, [&](auto cache) { heads<decltype(x), decltype(cache)>(a, w); });
  });
}

}  // namespace kdelta
