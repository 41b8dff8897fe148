#include "kdelta/core/shape.h"

#include "kdelta/core/check.h"

namespace kdelta {

Shape::Shape(std::initializer_list<int64_t> dims) : rank(static_cast<int>(dims.size())) {
  KDELTA_CHECK(rank <= kMaxRank, "rank ", rank);
  size_t i = 0;
  for (int64_t d : dims) {
    KDELTA_CHECK(d >= 0, "dimension ", d);
    dim[i++] = d;
  }
}

bool Shape::operator==(const Shape& other) const {
  if (rank != other.rank) return false;
  for (int i = 0; i < rank; ++i)
    if ((*this)[i] != other[i]) return false;
  return true;
}

Strides dense_strides(const Shape& shape) {
  Strides strides{};
  int64_t step = 1;
  for (int i = shape.rank - 1; i >= 0; --i) {
    strides[static_cast<size_t>(i)] = step;
    step *= shape[i];
  }
  return strides;
}

std::string to_string(const Shape& shape) {
  std::string out = "[";
  for (int i = 0; i < shape.rank; ++i) out += (i != 0 ? ", " : "") + std::to_string(shape[i]);
  return out + "]";
}

}  // namespace kdelta
