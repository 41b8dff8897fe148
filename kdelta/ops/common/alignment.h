// Whether rows can be read in 16-byte words: what the wide forms of CUDA kernels ask.
#pragma once

#include "kdelta/core/tensor.h"

namespace kdelta {

// Whether every row of the view begins at a 16-byte boundary and is a whole number of 16-byte words. Null views agree
// to everything.
template <class V>
bool aligned16(const V& v) {
  if (v.data == nullptr) return true;
  int64_t element = 0;
  if constexpr (requires { v.dtype; })
    element = dtype_bytes(v.dtype);
  else
    element = static_cast<int64_t>(sizeof(*v.data));
  bool fits = reinterpret_cast<uintptr_t>(v.data) % 16 == 0;
  const int last = v.shape.rank - 1;
  fits = fits && v.shape[last] * element % 16 == 0;
  for (int axis = 0; axis < last; ++axis)
    if (v.shape[axis] > 1) fits = fits && v.stride[static_cast<size_t>(axis)] * element % 16 == 0;
  return fits;
}
template <class... V>
bool all_aligned16(const V&... v) {
  return (aligned16(v) && ...);
}

}  // namespace kdelta
