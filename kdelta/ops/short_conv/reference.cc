// The definition of the short convolution, in fp64, one channel of one sequence at a time.
#include <cmath>

#include "kdelta/ops/common/dispatch.h"
#include "kdelta/ops/short_conv/variants.h"

namespace kdelta {
namespace {

template <class E>
E& output(const ShortConvArgs& a, int64_t t, int64_t c) {
  if (!a.out.null()) return a.out.at<E>(t)[c];
  const int64_t P = a.x.dim(1) / 3;
  return a.split[static_cast<size_t>(c / P)].at<E>(t)[c % P];
}

template <class E>
void channel(const ShortConvArgs& a, int64_t n, int64_t c) {
  const int64_t W = a.weight.dim(0), begin = *a.seq.cu.at(n), len = *a.seq.cu.at(n + 1) - begin;
  E history[3] = {};
  if (*a.seq.fresh.at(n) == 0)
    for (int64_t j = 0; j < W - 1; ++j)
      history[j] = a.state.at<E>(*a.seq.slot.at(n, 0), *a.seq.accepted.at(n) - 1 + j)[c];
  // Input i of the sequence; negative: before this call.
  auto input = [&](int64_t i) { return i < 0 ? history[W - 1 + i] : a.x.at<const E>(begin + i)[c]; };
  for (int64_t i = 0; i < len; ++i) {
    double y = 0;
    for (int64_t j = 0; j < W; ++j) y += static_cast<double>(a.weight.at(j)[c]) * to_float(input(i - (W - 1) + j));
    if (a.activation == ConvActivation::silu) y /= 1 + std::exp(-y);
    output<E>(a, begin + i, c) = from_float<E>(static_cast<float>(y));
  }
  auto save = [&](int32_t slot, int64_t first, int64_t rows) {
    for (int64_t j = 0; j < rows; ++j) a.state.at<E>(slot, j)[c] = input(first + j);
  };
  const int64_t Q = a.seq.snapshot.null() ? 0 : a.seq.snapshot.dim(0);
  for (int64_t q = 0; q < Q; ++q)
    if (*a.seq.snapshot.at(q, 2) != -1 && *a.seq.snapshot.at(q, 0) == n)
      save(*a.seq.snapshot.at(q, 2), *a.seq.snapshot.at(q, 1) - (W - 1), W - 1);
  if (n < a.seq.n_prefill)
    save(*a.seq.slot.at(n, 0), len - (W - 1), W - 1);
  else
    save(*a.seq.slot.at(n, 0), -(W - 2), W - 2 + len);
}

template <class E>
void zero_rows(const ShortConvArgs& a, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t)
    for (int64_t c = 0; c < a.x.dim(1); ++c) output<E>(a, t, c) = E{};
}

}  // namespace

void short_conv_reference(const Exec&, const ShortConvArgs& a, const ShortConvDesc&, void*) {
  dispatch_activation(a.x.dtype, [&](auto element) {
    using E = decltype(element);
    const int64_t N = a.seq.count();
    for (int64_t n = 0; n < N; ++n) {
      const int64_t begin = *a.seq.cu.at(n), end = *a.seq.cu.at(n + 1);
      if (*a.seq.slot.at(n, 0) == -1)
        zero_rows<E>(a, begin, end);
      else if (begin < end)
        for (int64_t c = 0; c < a.x.dim(1); ++c) channel<E>(a, n, c);
    }
    zero_rows<E>(a, *a.seq.cu.at(N), a.x.dim(0));
  });
}

}  // namespace kdelta
