// The definition of the block attention residual, in fp64.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kdelta/ops/attn_res/variants.h"
#include "kdelta/ops/common/dispatch.h"

namespace kdelta {
namespace {

template <class E>
double mean_square(const E* v, int64_t D) {
  double sum = 0;
  for (int64_t d = 0; d < D; ++d) sum += static_cast<double>(to_float(v[d])) * to_float(v[d]);
  return sum / static_cast<double>(D);
}

template <class E>
double score(const AttnResArgs& a, const E* v) {
  const int64_t D = a.sum.dim(1);
  double dot = 0;
  for (int64_t d = 0; d < D; ++d) dot += static_cast<double>(to_float(v[d])) * a.score_weight.data[d];
  return dot / std::sqrt(mean_square(v, D) + static_cast<double>(a.eps));
}

void softmax(std::vector<double>& p) {
  const double top = *std::max_element(p.begin(), p.end());
  double sum = 0;
  for (double& x : p) sum += x = std::exp(x - top);
  for (double& x : p) x /= sum;
}

template <class E>
void add_row(const AttnResArgs& a, int64_t t) {
  const E *sum = a.sum.at<const E>(t), *addend = a.addend.at<const E>(t);
  E* out = a.sum_out.at<E>(t);
  for (int64_t d = 0; d < a.sum.dim(1); ++d) out[d] = from_float<E>(to_float(sum[d]) + to_float(addend[d]));
}

template <class E>
void mix_row(const AttnResArgs& a, int64_t t, std::vector<double>& p) {
  const E* sum = a.addend.null() ? a.sum.at<const E>(t) : a.sum_out.at<E>(t);
  auto stream = [&](int64_t i) { return i < a.n ? a.blocks.at<const E>(i, t) : sum; };
  E* out = a.out.at<E>(t);
  for (int64_t i = 0; i <= a.n; ++i) p[static_cast<size_t>(i)] = score(a, stream(i));
  softmax(p);
  for (int64_t d = 0; d < a.sum.dim(1); ++d) {
    double mix = 0;
    for (int64_t i = 0; i <= a.n; ++i) mix += p[static_cast<size_t>(i)] * to_float(stream(i)[d]);
    out[d] = a.n == 0 ? stream(0)[d] : from_float<E>(static_cast<float>(mix));
  }
}

// In place, from the rounded mixture: what the norm op would read.
template <class E>
void norm_row(const AttnResArgs& a, E* x) {
  const int64_t D = a.sum.dim(1);
  const double scale = 1 / std::sqrt(mean_square(x, D) + static_cast<double>(a.norm_eps));
  for (int64_t d = 0; d < D; ++d)
    x[d] = from_float<E>(static_cast<float>(scale * to_float(x[d]) * a.norm_weight.data[d]));
}

}  // namespace

void attn_res_reference(const Exec&, const AttnResArgs& a, const AttnResDesc&, void*) {
  std::vector<double> p(static_cast<size_t>(a.n + 1));
  dispatch_activation(a.sum.dtype, [&](auto element) {
    using E = decltype(element);
    for (int64_t t = 0; t < a.sum.dim(0); ++t) {
      if (!a.addend.null()) add_row<E>(a, t);
      mix_row<E>(a, t, p);
      if (!a.norm_weight.null()) norm_row(a, a.out.at<E>(t));
    }
  });
}

}  // namespace kdelta
