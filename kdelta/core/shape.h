// Shape and strides of a view: inline arrays, no heap. Dimensions and strides are 64-bit element counts, so a product
// of token, row and slot numbers never wraps.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "kdelta/core/dtype.h"

namespace kdelta {

inline constexpr int kMaxRank = 5;

struct Shape {
  std::array<int64_t, kMaxRank> dim{};
  int rank = 0;

  Shape() = default;
  Shape(std::initializer_list<int64_t> dims);

  KDELTA_INLINE int64_t operator[](int axis) const { return dim[static_cast<size_t>(axis)]; }
  KDELTA_INLINE int64_t numel() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= dim[static_cast<size_t>(i)];
    return n;
  }
  bool operator==(const Shape& other) const;
};

using Strides = std::array<int64_t, kMaxRank>;

// Row-major strides of a dense array of this shape, in elements.
Strides dense_strides(const Shape& shape);
// "[2, 128]"
std::string to_string(const Shape& shape);

}  // namespace kdelta
