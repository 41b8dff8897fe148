// Whether two activations share memory. Exact for strided views: two column ranges of one packed buffer do not.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kdelta/core/error.h"
#include "kdelta/core/tensor.h"

namespace kdelta {

// A view of rank 2 or 3 with a dense last axis, as bytes: `outer` times `inner` rows, in the order of their addresses.
struct RowSpans {
  explicit RowSpans(const AnyConstView& v) {
    const int64_t element = dtype_bytes(v.dtype);
    const int last = v.shape.rank - 1;
    first = reinterpret_cast<uintptr_t>(v.data);
    bytes = static_cast<uintptr_t>(v.dim(last) * element);
    outer = v.dim(0), outer_stride = v.stride[0] * element;
    if (last == 2) inner = v.dim(1), inner_stride = v.stride[1] * element;
    if (inner_stride > outer_stride) {
      std::swap(inner, outer);
      std::swap(inner_stride, outer_stride);
    }
  }
  int64_t rows() const { return bytes == 0 ? 0 : outer * inner; }
  uintptr_t begin(int64_t row) const {
    return first + static_cast<uintptr_t>(row / inner * outer_stride + row % inner * inner_stride);
  }

  uintptr_t first = 0, bytes = 0;
  int64_t outer = 1, inner = 1, outer_stride = 0, inner_stride = 0;
};

inline bool overlap(const AnyConstView& a, const AnyConstView& b) {
  if (a.null() || b.null()) return false;
  const RowSpans x(a), y(b);
  const int64_t n = x.rows(), m = y.rows();
  if (n == 0 || m == 0) return false;
  if (x.begin(n - 1) + x.bytes <= y.first || y.begin(m - 1) + y.bytes <= x.first) return false;
  for (int64_t i = 0, j = 0; i < n && j < m;) {
    const uintptr_t p = x.begin(i), q = y.begin(j);
    if (p + x.bytes <= q)
      ++i;
    else if (q + y.bytes <= p)
      ++j;
    else
      return true;
  }
  return false;
}

// The same elements of the same array.
inline bool same_view(const AnyConstView& a, const AnyConstView& b) {
  return a.data == b.data && a.dtype == b.dtype && a.shape == b.shape && a.stride == b.stride;
}

// Throws Error(invalid_argument): "OP: OUTPUT: overlaps INPUT, expected ...".
inline void expect_apart(const AnyConstView& output, const AnyConstView& input, const char* output_name,
                         const char* input_name) {
  if (overlap(output, input))
    fail(ErrorCode::invalid_argument, output_name, ": overlaps ", input_name, ", expected memory of its own");
}

}  // namespace kdelta
