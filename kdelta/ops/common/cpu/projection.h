// What linear and grouped_linear share on the CPU: one weight matrix applied to a list of token rows. A kernel computes
// all tokens for a range of weight rows; who owns which range never changes a bit, because every output is reduced over
// K alone.
#pragma once

#include "kdelta/core/dtype.h"
#include "kdelta/core/matrix.h"
#include "kdelta/core/tensor.h"

namespace kdelta {

// out[t, n] = sum_k x[row[t], k] * w[n, k] (+ addend[t, n]) for t < T.
struct Projection {
  Matrix w;                      // [N, K]
  AnyConstView x;                // [R, K] f32 or bf16
  const int32_t* row = nullptr;  // [T] rows of x, or null: row t
  AnyConstView addend;           // null or [T, N] in out's dtype
  AnyView out;                   // [T, N] f32 or bf16
  int64_t T = 0;

  template <class X>
  KDELTA_INLINE const X* token(int64_t t) const {
    return x.template at<const X>(row == nullptr ? t : row[t]);
  }
};

// The same projection for tokens [first, first + count).
KDELTA_INLINE Projection token_range(Projection p, int64_t first, int64_t count) {
  const int64_t x_bytes = p.x.dtype == DType::f32 ? 4 : 2, out_bytes = p.out.dtype == DType::f32 ? 4 : 2;
  if (p.row != nullptr) {
    p.row += first;
  } else {
    p.x.data = static_cast<const char*>(p.x.data) + first * p.x.stride[0] * x_bytes;
  }
  p.out.data = static_cast<char*>(p.out.data) + first * p.out.stride[0] * out_bytes;
  if (!p.addend.null())
    p.addend.data = static_cast<const char*>(p.addend.data) + first * p.addend.stride[0] * out_bytes;
  p.T = count;
  return p;
}

// Weight rows per work item: one AMX tile, one AVX-512 vector of outputs.
inline constexpr int64_t kPanelRows = 16;

KDELTA_INLINE int64_t panel_count(int64_t rows) {
  return (rows + kPanelRows - 1) / kPanelRows;
}

// Projections of the same tokens by weights of one dtype and width, worked on as one: items number the panels of all of
// them in order.
struct ProjectionList {
  static constexpr int kMost = 8;
  Projection part[kMost];
  int count = 0;

  KDELTA_INLINE int64_t panels() const {
    int64_t n = 0;
    for (int i = 0; i < count; ++i) n += panel_count(part[i].w.rows);
    return n;
  }
  KDELTA_INLINE ProjectionList tokens(int64_t first, int64_t n) const {
    ProjectionList list;
    for (; list.count < count; ++list.count) list.part[list.count] = token_range(part[list.count], first, n);
    return list;
  }
  // f(projection, first panel, last panel) for the items [begin, end).
  template <class F>
  KDELTA_INLINE void for_each(int64_t begin, int64_t end, F&& f) const {
    for (int i = 0; i < count && begin < end; ++i) {
      const int64_t panels = panel_count(part[i].w.rows);
      if (begin < panels) {
        const int64_t last = end < panels ? end : panels;
        f(part[i], begin, last);
        begin = last;
      }
      begin -= panels;
      end -= panels;
    }
  }
};

// Panels per hand-out: about 256 KB of weights, so that a piece streams and the team still balances.
KDELTA_INLINE int64_t panel_grain(int64_t row_bytes, int64_t panels, int threads) {
  const int64_t by_size = (int64_t{256} << 10) / (kPanelRows * (row_bytes > 0 ? row_bytes : 1));
  const int64_t by_balance = panels / (4 * threads);
  const int64_t grain = by_size < by_balance ? by_size : by_balance;
  return grain > 1 ? grain : 1;
}

// The same for the bf16 kernels, which work on up to 16 panels at once.
KDELTA_INLINE int64_t group_grain(int64_t panels, int threads) {
  const int64_t by_balance = panels / (4 * threads);
  return by_balance >= 16 ? 16 : by_balance > 1 ? by_balance : 1;
}

}  // namespace kdelta
