// The vector kernel of short_conv over any V of simd.h. A piece is one tile of channels of one sequence: it walks the
// sequence's tokens over row pointers (history rows, then input rows), writes the snapshots and at last the window.
// Only this piece touches these channels of the slot, so nothing has to be saved aside. Channels are independent, and
// every output is the same chain of operations: the bits depend neither on the tile nor on the split nor on how tokens
// are grouped.
#pragma once

#include <algorithm>
#include <cstring>

#include "kdelta/ops/common/cpu/parallel.h"
#include "kdelta/ops/common/cpu/simd_math.h"
#include "kdelta/ops/common/dispatch.h"
#include "kdelta/ops/short_conv/variants.h"

namespace kdelta {

// Channels of one piece. A piece walks all tokens of its sequence, so small pieces balance the threads.
inline constexpr int64_t kConvTile = 512;
// Tokens that share the loads of weights and history: 7 inputs are widened for 4 outputs instead of 16. 8 was slower:
// rows of K3 lie a multiple of 4 KB apart and share one set of L1. With the 16 registers of AVX2 and SSE a group
// spills, so there it is 1.
template <class V>
inline constexpr int kConvGroup = V::kLanes == 16 ? 4 : 1;

// One output from the W inputs at x.
template <class V, int W, bool kSilu>
KDELTA_INLINE V conv_value(const V (&w)[W], const V* x) {
  V y = w[0] * x[0];
  for (int j = 1; j < W; ++j) y = V::fma(w[j], x[j], y);
  return kSilu ? simd::silu(y) : y;
}

// B output rows, n lanes at channel c. row[i .. i + W-1] are the inputs of out[i].
template <class V, int W, bool kSilu, int B, class E>
KDELTA_INLINE void conv_lanes(const E* const* row, const float* const (&weight)[W], E* const* out, int64_t c,
                              int64_t n) {
  V w[W], x[W - 1 + B];
  for (int j = 0; j < W; ++j) w[j] = simd::load_lanes<V>(weight[j] + c, n);
  for (int j = 0; j < W - 1; ++j) x[j] = simd::load_lanes<V>(row[j] + c, n);
  for (int i = 0; i < B; ++i) {
    x[W - 1 + i] = simd::load_lanes<V>(row[W - 1 + i] + c, n);
    simd::store_lanes(conv_value<V, W, kSilu>(w, x + i), out[i] + c, n);
  }
}

// The same for two whole vectors, which are a cache line of bf16 in AVX-512: a line stored at once need not be fetched
// first.
template <class V, int W, bool kSilu, int B, class E>
KDELTA_INLINE void conv_pair(const E* const* row, const float* const (&weight)[W], E* const* out, int64_t c) {
  constexpr int64_t L = V::kLanes;
  V w0[W], w1[W], x0[W - 1 + B], x1[W - 1 + B];
  for (int j = 0; j < W; ++j) w0[j] = V::load(weight[j] + c), w1[j] = V::load(weight[j] + c + L);
  for (int j = 0; j < W - 1; ++j) x0[j] = V::load(row[j] + c), x1[j] = V::load(row[j] + c + L);
  for (int i = 0; i < B; ++i) {
    x0[W - 1 + i] = V::load(row[W - 1 + i] + c);
    x1[W - 1 + i] = V::load(row[W - 1 + i] + c + L);
    V::store_pair(conv_value<V, W, kSilu>(w0, x0 + i), conv_value<V, W, kSilu>(w1, x1 + i), out[i] + c);
  }
}

// One tile of one sequence. `part` is the output this tile belongs to, `shift` the channel of x where that output
// starts.
template <class V, class E, int W, bool kSilu>
class ConvTile {
 public:
  KDELTA_INLINE ConvTile(const ShortConvArgs& a, const AnyView& part, int64_t shift, int64_t first, int64_t width)
      : a_(a), part_(part), out_channel_(first), channel_(shift + first), width_(width) {
    for (int j = 0; j < W; ++j) weight_[j] = a.weight.at(j) + channel_;
  }

  void zero(int64_t begin, int64_t end) const {
    for (int64_t t = begin; t < end; ++t) std::memset(out(t), 0, bytes());
  }

  void sequence(int64_t n, int64_t begin, int64_t len) const {
    const E* history[W - 1];
    for (int j = 0; j < W - 1; ++j)
      history[j] = *a_.seq.fresh.at(n) != 0 ? kZeros : slot_row(*a_.seq.slot.at(n, 0), *a_.seq.accepted.at(n) - 1 + j);
    // Input i of the sequence; negative: before this call.
    auto input = [&](int64_t i) {
      return i < 0 ? history[W - 1 + i] : a_.x.template at<const E>(begin + i) + channel_;
    };
    constexpr int kGroup = kConvGroup<V>;
    int64_t i = 0;
    for (; i + kGroup <= len; i += kGroup) outputs<kGroup>(input, begin, i);
    for (; i < len; ++i) outputs<1>(input, begin, i);
    const int64_t Q = a_.seq.snapshot.null() ? 0 : a_.seq.snapshot.dim(0);
    for (int64_t q = 0; q < Q; ++q)
      if (*a_.seq.snapshot.at(q, 2) != -1 && *a_.seq.snapshot.at(q, 0) == n)
        save(input, *a_.seq.snapshot.at(q, 2), *a_.seq.snapshot.at(q, 1) - (W - 1), W - 1);
    if (n < a_.seq.n_prefill)
      save(input, *a_.seq.slot.at(n, 0), len - (W - 1), W - 1);
    else
      save(input, *a_.seq.slot.at(n, 0), -(W - 2), W - 2 + len);
  }

 private:
  alignas(64) static constexpr E kZeros[kConvTile] = {};

  KDELTA_INLINE E* out(int64_t t) const { return part_.template at<E>(t) + out_channel_; }
  KDELTA_INLINE E* slot_row(int64_t slot, int64_t r) const { return a_.state.template at<E>(slot, r) + channel_; }
  KDELTA_INLINE size_t bytes() const { return static_cast<size_t>(width_) * sizeof(E); }

  // Outputs i .. i + B-1 of the sequence.
  template <int B, class Input>
  KDELTA_INLINE void outputs(const Input& input, int64_t begin, int64_t i) const {
    constexpr int64_t L = V::kLanes;
    const E* row[W - 1 + B];
    E* y[B];
    for (int j = 0; j < W - 1 + B; ++j) row[j] = input(i - (W - 1) + j);
    for (int j = 0; j < B; ++j) y[j] = out(begin + i + j);
    int64_t c = 0;
    for (; c + 2 * L <= width_; c += 2 * L) conv_pair<V, W, kSilu, B>(row, weight_, y, c);
    for (; c < width_; c += L) conv_lanes<V, W, kSilu, B>(row, weight_, y, c, std::min(L, width_ - c));
  }

  // Row j of the slot = input first + j. Ascending order: a source row of the same slot lies behind its target.
  template <class Input>
  KDELTA_INLINE void save(const Input& input, int64_t slot, int64_t first, int64_t rows) const {
    for (int64_t j = 0; j < rows; ++j) std::memcpy(slot_row(slot, j), input(first + j), bytes());
  }

  const ShortConvArgs& a_;
  const AnyView& part_;
  int64_t out_channel_, channel_, width_;
  const float* weight_[W];
};

// Segment n < N is sequence n, segment N the rows that no sequence covers.
template <class V, class E, int W, bool kSilu>
void conv_segment(const ShortConvArgs& a, int64_t n, int64_t tile) {
  const int64_t N = a.seq.count(), parts = a.out.null() ? 3 : 1, P = a.x.dim(1) / parts,
                tiles = (P + kConvTile - 1) / kConvTile;
  const int64_t part = tile / tiles, first = tile % tiles * kConvTile;
  const AnyView& out = parts == 3 ? a.split[static_cast<size_t>(part)] : a.out;
  const ConvTile<V, E, W, kSilu> job(a, out, part * P, first, std::min(kConvTile, P - first));
  const int64_t begin = *a.seq.cu.at(n), end = n < N ? *a.seq.cu.at(n + 1) : a.x.dim(0);
  if (n == N || *a.seq.slot.at(n, 0) == -1)
    job.zero(begin, end);
  else if (begin < end)
    job.sequence(n, begin, end - begin);
}

template <class V, class E, int W, bool kSilu>
void conv_run(const Exec& ex, const ShortConvArgs& a) {
  const int64_t parts = a.out.null() ? 3 : 1, tiles = parts * ((a.x.dim(1) / parts + kConvTile - 1) / kConvTile);
  parallel_for(ex, (a.seq.count() + 1) * tiles, 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) conv_segment<V, E, W, kSilu>(a, p / tiles, p % tiles);
  });
}

template <class V, class E, int W>
void conv_activation(const Exec& ex, const ShortConvArgs& a) {
  switch (a.activation) {
    case ConvActivation::none:
      return conv_run<V, E, W, false>(ex, a);
    case ConvActivation::silu:
      return conv_run<V, E, W, true>(ex, a);
  }
  KDELTA_UNREACHABLE("conv activation", a.activation);
}

template <class V>
void short_conv_cpu(const Exec& ex, const ShortConvArgs& a) {
  dispatch_activation(a.x.dtype, [&](auto element) {
    using E = decltype(element);
    switch (a.weight.dim(0)) {
      case 2:
        return conv_activation<V, E, 2>(ex, a);
      case 3:
        return conv_activation<V, E, 3>(ex, a);
      case 4:
        return conv_activation<V, E, 4>(ex, a);
      default:
        KDELTA_UNREACHABLE("taps", a.weight.dim(0));
    }
  });
}

}  // namespace kdelta
