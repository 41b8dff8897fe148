// Views as kernels take them: a pointer and 64-bit strides, small enough to pass by value.
#pragma once

#include "kdelta/core/check.h"
#include "kdelta/core/tensor.h"
#include "kdelta/ops/common/alignment.h"

namespace kdelta::cuda {

template <class T>
struct Rows {
  T* data;
  int64_t stride;  // elements
  __device__ __forceinline__ T* at(int64_t row) const { return data + row * stride; }
};

template <class T>
struct HeadRows {
  T* data;
  int64_t stride, head_stride;
  __device__ __forceinline__ T* at(int64_t row, int64_t head) const { return data + row * stride + head * head_stride; }
};

template <class T, bool kConst>
Rows<T> rows(const BasicAnyView<kConst>& v) {
  return {static_cast<T*>(v.data), v.stride[0]};
}
template <class T, class U>
Rows<T> rows(const View<U>& v) {
  return {v.data, v.stride[0]};
}
template <class T, bool kConst>
HeadRows<T> head_rows(const BasicAnyView<kConst>& v) {
  return {static_cast<T*>(v.data), v.stride[0], v.stride[1]};
}

// f(std::true_type) or f(std::false_type).
template <class F>
void dispatch_bool(bool value, F&& f) {
  if (value)
    f(std::true_type{});
  else
    f(std::false_type{});
}

}  // namespace kdelta::cuda
