// Views: pointer + shape + strides (+ dtype). A view never owns. View<T> is for a fixed element type, AnyView /
// AnyConstView for activations whose dtype follows the engine's --dtype (f32 or bf16).
#pragma once

#include <string>
#include <type_traits>

#include "kdelta/core/dtype.h"
#include "kdelta/core/shape.h"

namespace kdelta {

template <class T>
struct View {
  T* data = nullptr;
  Shape shape;
  Strides stride{};  // elements

  View() = default;
  View(T* p, const Shape& s) : data(p), shape(s), stride(dense_strides(s)) {}
  View(T* p, const Shape& s, const Strides& st) : data(p), shape(s), stride(st) {}
  // View<T> to View<const T>
  template <class U>
  requires(std::is_same_v<const U, T> && !std::is_same_v<U, T>) View(const View<U>& v)
      : data(v.data), shape(v.shape), stride(v.stride) {}

  KDELTA_INLINE bool null() const { return data == nullptr; }
  KDELTA_INLINE int64_t dim(int axis) const { return shape[axis]; }
  KDELTA_INLINE T* at(int64_t i) const { return data + i * stride[0]; }
  KDELTA_INLINE T* at(int64_t i, int64_t j) const { return data + i * stride[0] + j * stride[1]; }
  KDELTA_INLINE T* at(int64_t i, int64_t j, int64_t k) const {
    return data + i * stride[0] + j * stride[1] + k * stride[2];
  }
};

template <bool kConst>
struct BasicAnyView {
  using Void = std::conditional_t<kConst, const void, void>;
  Void* data = nullptr;
  DType dtype = DType::f32;
  Shape shape;
  Strides stride{};  // elements

  BasicAnyView() = default;
  BasicAnyView(Void* p, DType d, const Shape& s) : data(p), dtype(d), shape(s), stride(dense_strides(s)) {}
  BasicAnyView(Void* p, DType d, const Shape& s, const Strides& st) : data(p), dtype(d), shape(s), stride(st) {}
  template <class T>
  requires(kConst || !std::is_const_v<T>) BasicAnyView(const View<T>& v)
      : data(v.data), dtype(DTypeOf<std::remove_const_t<T>>::value), shape(v.shape), stride(v.stride) {}
  template <bool kOther>
  requires(kConst && !kOther) BasicAnyView(const BasicAnyView<kOther>& v)
      : data(v.data), dtype(v.dtype), shape(v.shape), stride(v.stride) {}

  KDELTA_INLINE bool null() const { return data == nullptr; }
  KDELTA_INLINE int64_t dim(int axis) const { return shape[axis]; }

  // Typed pointer to element (i, 0, ...) or (i, j, 0, ...). The caller has checked the dtype.
  template <class T>
  KDELTA_INLINE T* at(int64_t i, int64_t j = 0) const {
    return static_cast<T*>(data) + i * stride[0] + j * stride[1];
  }
  // The same view as View<T>; throws when the dtype differs.
  template <class T>
  View<T> as() const {
    require_dtype(dtype, DTypeOf<std::remove_const_t<T>>::value);
    return View<T>(static_cast<T*>(data), shape, stride);
  }

  // Rows [begin, begin+count) of axis 0; columns [begin, begin+count) of the last axis. Views, never copies.
  BasicAnyView rows(int64_t begin, int64_t count) const { return slice(0, begin, count); }
  BasicAnyView columns(int64_t begin, int64_t count) const { return slice(shape.rank - 1, begin, count); }
  BasicAnyView slice(int axis, int64_t begin, int64_t count) const;
  // The last axis split in two: [T, H*D] -> [T, H, D].
  BasicAnyView split_last(int64_t outer, int64_t inner) const;

 private:
  static void require_dtype(DType have, DType want);
};

using AnyView = BasicAnyView<false>;
using AnyConstView = BasicAnyView<true>;

// Checks for the entry of an op. Each throws Error(invalid_argument) naming the argument, what was given and what is
// accepted.
void expect_shape(const Shape& shape, const Shape& want, const char* argument);
void expect_dtype(DType dtype, std::initializer_list<DType> accepted, const char* argument);
void expect_last_dense(const Shape& shape, const Strides& stride, const char* argument);
void expect_not_null(const void* data, const Shape& shape, const char* argument);

// All of the above for one argument: right shape, pointer present unless empty, stride 1 on the last axis.
template <class V>
void expect_view(const V& v, const Shape& want, const char* argument) {
  expect_shape(v.shape, want, argument);
  expect_not_null(v.data, v.shape, argument);
  expect_last_dense(v.shape, v.stride, argument);
}
// An activation: f32 or bf16.
void expect_activation(const AnyConstView& v, const Shape& want, const char* argument);

}  // namespace kdelta
