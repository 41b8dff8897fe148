// One call of short_conv written as rows, and the plain model it is compared with: the whole history of every sequence.
#pragma once

#include <cmath>
#include <cstring>
#include <vector>

#include "kdelta/ops/short_conv/variants.h"
#include "tests/support/op_test.h"
#include "tests/support/spread.h"

namespace kdelta::test {

// The sequences of one step. Only column 0 of a slot row is the convolution's; the other columns hold numbers no pool
// has.
struct ConvRows {
  explicit ConvRows(int columns_ = 1) : columns(columns_) {}
  ConvRows& prefill(int len, int slot, bool fresh_row = false, int accepted_count = 1) {
    ++n_prefill;
    return add(len, slot, accepted_count, fresh_row);
  }
  ConvRows& decode(int len, int slot, int accepted_count = 1, bool fresh_row = false) {
    ++n_decode;
    return add(len, slot, accepted_count, fresh_row);
  }
  ConvRows& save(int sequence, int position, int slot) {
    for (int v : {sequence, position, slot}) snapshot.push_back(v);
    return *this;
  }
  Sequences view() const {
    const auto N = static_cast<int64_t>(fresh.size());
    Sequences s{.cu = {cu.data(), {N + 1}},
                .slot = {slots.data(), {N, columns}},
                .accepted = {accepted.data(), {N}},
                .fresh = {fresh.data(), {N}},
                .n_prefill = n_prefill,
                .n_decode = n_decode};
    if (!snapshot.empty()) s.snapshot = {snapshot.data(), {static_cast<int64_t>(snapshot.size()) / 3, 3}};
    for (size_t n = 0; n < fresh.size(); ++n) s.max_len = std::max<int64_t>(s.max_len, cu[n + 1] - cu[n]);
    return s;
  }
  int64_t tokens() const { return cu.back(); }

  int columns, n_prefill = 0, n_decode = 0;
  std::vector<int32_t> cu{0}, slots, accepted, snapshot;
  std::vector<uint8_t> fresh;

 private:
  ConvRows& add(int len, int slot, int accepted_count, bool fresh_row) {
    cu.push_back(cu.back() + len);
    slots.push_back(slot);
    for (int c = 1; c < columns; ++c) slots.push_back(1000000);
    accepted.push_back(accepted_count);
    fresh.push_back(fresh_row);
    return *this;
  }
};

// Weights, a poisoned pool and the raw inputs of one long sequence, from which tests take rows.
template <class E>
struct ConvWorld {
  ConvWorld(int64_t W_, int64_t C_, int columns = 1, int64_t slots = 6, uint64_t seed = 1)
      : W(W_), C(C_), R(W_ - 1 + columns - 1), weight({W_, C_}), state({slots, R, C_}), rng(seed) {
    fill_normal(weight, rng, 0.5f);
  }
  Guarded<E> inputs(int64_t T) {
    Guarded<E> x({T, C});
    fill_normal(x, rng, 1.5f);
    return x;
  }
  ShortConvArgs args(const AnyConstView& x, const AnyView& out, const ConvRows& rows) {
    return {.x = x, .weight = weight, .seq = rows.view(), .state = state.view(), .out = out};
  }
  // The output of a call whose rows are exactly x's.
  Guarded<E> run(const Exec& ex, Guarded<E>& x, const ConvRows& rows,
                 ConvActivation activation = ConvActivation::silu) {
    Guarded<E> out({x.shape()[0], C});
    ShortConvArgs a = args(x.view(), out.view(), rows);
    a.activation = activation;
    short_conv(ex, a);
    EXPECT_TRUE(out.guards_intact() && state.guards_intact());
    return out;
  }
  const E* window(int64_t slot, int64_t row) const { return state.data() + (slot * R + row) * C; }
  // Poison in a slot that nobody may touch is intact.
  bool slot_untouched(int64_t slot, const Guarded<E>& before) const {
    const int64_t n = R * C;
    return equal_bits(state.data() + slot * n, before.data() + slot * n, n);
  }

  int64_t W, C, R;
  Guarded<float> weight;
  Guarded<E> state;
  Rng rng;
};

// Row t of a sequence whose whole history is `past` ([count, C], nothing before it), in fp64; magnitude: sum of
// |terms|.
template <class E>
double conv_definition(const ConvWorld<E>& w, const std::vector<const E*>& past, int64_t t, int64_t c, bool silu,
                       double* magnitude) {
  double y = 0;
  *magnitude = 0;
  for (int64_t j = 0; j < w.W; ++j) {
    const int64_t i = t - (w.W - 1) + j;
    if (i < 0) continue;
    const double term = static_cast<double>(w.weight[j * w.C + c]) * to_float(past[static_cast<size_t>(i)][c]);
    y += term;
    *magnitude += std::fabs(term);
  }
  return silu ? y / (1 + std::exp(-y)) : y;
}

// Rows [begin, begin + count) of x.
template <class E>
Guarded<E> rows_of(const Guarded<E>& x, int64_t begin, int64_t count) {
  const int64_t C = x.shape()[1];
  Guarded<E> out({count, C});
  if (count > 0) std::memcpy(out.data(), x.data() + begin * C, static_cast<size_t>(count * C) * sizeof(E));
  return out;
}

}  // namespace kdelta::test
