// Rows apart from each other: what a view of a merged projection, or of an address past 2^32 elements, is. Tests
// compare a call on such rows with the same call on a dense array.
#pragma once

#include <cstring>

#include "tests/support/sparse.h"
#include "tests/support/support.h"

namespace kdelta::test {

template <class T>
bool equal_bits(const T* a, const T* b, int64_t elements) {
  return std::memcmp(a, b, static_cast<size_t>(elements) * sizeof(T)) == 0;
}

// `rows` rows of `width` elements at a stride, to rows at another.
template <class T>
void copy_rows(T* to, int64_t to_stride, const T* from, int64_t from_stride, int64_t rows, int64_t width) {
  for (int64_t r = 0; r < rows; ++r)
    std::memcpy(to + r * to_stride, from + r * from_stride, static_cast<size_t>(width) * sizeof(T));
}

// Strides of an array whose rows (its last axis) begin `stride` elements apart.
inline Strides row_strides(const Shape& shape, int64_t stride) {
  Strides out{};
  out[static_cast<size_t>(shape.rank - 1)] = 1;
  for (int axis = shape.rank - 2; axis >= 0; --axis) {
    out[static_cast<size_t>(axis)] = stride;
    stride *= shape[axis];
  }
  return out;
}

// What Spread and Far share: rows of `shape`, the first at `first`.
template <class T>
class RowSet {
 public:
  View<T> view() const { return View<T>(first_, shape_, row_strides(shape_, stride_)); }
  operator View<T>() const { return view(); }
  operator View<const T>() const { return view(); }
  // Every row has the bits of the dense array's.
  bool rows_equal(const Guarded<T>& dense) const {
    for (int64_t r = 0; r < rows(); ++r)
      if (!equal_bits<T>(first_ + r * stride_, dense.data() + r * width(), width())) return false;
    return dense.size() == rows() * width();
  }

 protected:
  RowSet(T* first, const Shape& shape, int64_t stride) : first_(first), shape_(shape), stride_(stride) {}
  void take(const Guarded<T>& dense) { copy_rows<T>(first_, stride_, dense.data(), width(), rows(), width()); }
  int64_t width() const { return shape_[shape_.rank - 1]; }
  int64_t rows() const { return rows_of(shape_); }
  static int64_t rows_of(const Shape& shape) { return shape.numel() / shape[shape.rank - 1]; }

  T* first_;
  Shape shape_;
  int64_t stride_;
};

// Rows at `column` of lines of `stride` elements, with poison between them. Widths are at least 1.
template <class T>
class Spread : private Guarded<T>, public RowSet<T> {
 public:
  // All poison: an output.
  Spread(const Shape& shape, int64_t stride, int64_t column = 0)
      : Guarded<T>({RowSet<T>::rows_of(shape), stride}),
        RowSet<T>(Guarded<T>::data() + column, shape, stride),
        column_(column) {}
  // The rows of `dense`: an input.
  Spread(const Guarded<T>& dense, int64_t stride, int64_t column = 0) : Spread(dense.shape(), stride, column) {
    this->take(dense);
  }
  Spread(const Spread&) = delete;
  Spread& operator=(const Spread&) = delete;
  using RowSet<T>::view;
  // Nothing was written between, before or behind the rows.
  bool gaps_intact() const {
    const Guarded<T>& lines = *this;
    for (int64_t r = 0; r < this->rows(); ++r) {
      const int64_t line = r * this->stride_, end = column_ + this->width();
      if (!lines.is_poison(line, column_) || !lines.is_poison(line + end, this->stride_ - end)) return false;
    }
    return lines.guards_intact();
  }

 private:
  int64_t column_;
};

// Rows so far apart that their offsets pass 2^31 and 2^32 elements; memory appears where it is touched.
template <class T>
class Far : private Sparse<T>, public RowSet<T> {
 public:
  Far(const Shape& shape, int64_t stride)
      : Sparse<T>(RowSet<T>::rows_of(shape) * stride), RowSet<T>(Sparse<T>::data(), shape, stride) {}
  Far(const Guarded<T>& dense, int64_t stride) : Far(dense.shape(), stride) { this->take(dense); }
};

}  // namespace kdelta::test
