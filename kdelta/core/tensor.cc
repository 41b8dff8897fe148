#include "kdelta/core/tensor.h"

#include "kdelta/core/check.h"

namespace kdelta {

template <bool kConst>
BasicAnyView<kConst> BasicAnyView<kConst>::slice(int axis, int64_t begin, int64_t count) const {
  KDELTA_CHECK(axis >= 0 && axis < shape.rank, "axis ", axis, " of ", to_string(shape));
  KDELTA_CHECK(begin >= 0 && count >= 0 && begin + count <= shape[axis], "slice ", begin, "+", count, " of axis ", axis,
               " of ", to_string(shape));
  BasicAnyView v = *this;
  using Byte = std::conditional_t<kConst, const char, char>;
  if (data != nullptr)
    v.data = static_cast<Byte*>(data) + begin * stride[static_cast<size_t>(axis)] * dtype_bytes(dtype);
  v.shape.dim[static_cast<size_t>(axis)] = count;
  return v;
}

template <bool kConst>
BasicAnyView<kConst> BasicAnyView<kConst>::split_last(int64_t outer, int64_t inner) const {
  const auto last = static_cast<size_t>(shape.rank - 1);
  KDELTA_CHECK(shape.rank < kMaxRank && shape.dim[last] == outer * inner, to_string(shape), " into ", outer, " x ",
               inner);
  BasicAnyView v = *this;
  v.shape.rank = shape.rank + 1;
  v.shape.dim[last] = outer;
  v.shape.dim[last + 1] = inner;
  v.stride[last] = inner * stride[last];
  v.stride[last + 1] = stride[last];
  return v;
}

template <bool kConst>
void BasicAnyView<kConst>::require_dtype(DType have, DType want) {
  if (have != want)
    fail(ErrorCode::invalid_argument, "view has dtype ", dtype_name(have), ", wanted ", dtype_name(want));
}

template struct BasicAnyView<true>;
template struct BasicAnyView<false>;

void expect_shape(const Shape& shape, const Shape& want, const char* argument) {
  if (!(shape == want))
    fail(ErrorCode::invalid_argument, argument, ": shape ", to_string(shape), ", expected ", to_string(want));
}

void expect_dtype(DType dtype, std::initializer_list<DType> accepted, const char* argument) {
  for (DType d : accepted)
    if (d == dtype) return;
  std::string names;
  for (DType d : accepted) names += (names.empty() ? "" : ", ") + std::string(dtype_name(d));
  fail(ErrorCode::invalid_argument, argument, ": dtype ", dtype_name(dtype), ", accepted: ", names);
}

void expect_last_dense(const Shape& shape, const Strides& stride, const char* argument) {
  if (shape.rank == 0) return;
  const auto last = static_cast<size_t>(shape.rank - 1);
  if (shape.dim[last] > 1 && stride[last] != 1)
    fail(ErrorCode::invalid_argument, argument, ": stride ", stride[last], " on the last axis, expected 1");
}

void expect_not_null(const void* data, const Shape& shape, const char* argument) {
  if (data == nullptr && shape.numel() != 0)
    fail(ErrorCode::invalid_argument, argument, ": null pointer for shape ", to_string(shape));
}

void expect_activation(const AnyConstView& v, const Shape& want, const char* argument) {
  expect_dtype(v.dtype, {DType::f32, DType::bf16}, argument);
  expect_view(v, want, argument);
}

}  // namespace kdelta
