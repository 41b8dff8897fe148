#include "kdelta/api/c_tensor.h"

#include <algorithm>
#include <cstring>

#include "kdelta/api/c_ops.h"
#include "kdelta/core/check.h"
#include "kdelta/ops/common/overlap.h"

namespace kdelta::c {
namespace {

constexpr int64_t kMostEmpty = int64_t{1} << 28;     // rows of no element: an op may walk over them all
constexpr int64_t kMostElements = int64_t{1} << 48;  // and so of any offset: products with sizes stay in 64 bits

bool dtype_of(const DLDataType& d, DType* out) {
  const struct {
    int code, bits;
    DType dtype;
  } known[] = {
      {kDLFloat, 32, DType::f32}, {kDLBfloat, 16, DType::bf16}, {kDLFloat, 16, DType::f16}, {kDLFloat, 64, DType::f64},
      {kDLInt, 32, DType::i32},   {kDLInt, 64, DType::i64},     {kDLInt, 8, DType::i8},     {kDLInt, 16, DType::i16},
      {kDLUInt, 8, DType::u8},    {kDLBool, 8, DType::u8},      {10, 8, DType::u8},         {12, 8, DType::u8},
      {14, 8, DType::u8},  // float8_e4m3fn, float8_e5m2, float8_e8m0fnu: bytes, whose meaning is said beside them
  };
  for (const auto& k : known)
    if (d.code == k.code && d.bits == k.bits && d.lanes == 1) {
      *out = k.dtype;
      return true;
    }
  return false;
}

// Whether two elements of a view may share an address: strides, from the smallest, must pass over what lies below.
bool overlaps_itself(const Shape& shape, const Strides& stride) {
  std::array<std::pair<int64_t, int64_t>, kMaxRank> axes;  // stride and size, by stride
  size_t n = 0;
  for (int i = 0; i < shape.rank; ++i) {
    if (shape[i] <= 1) continue;
    size_t at = n++;
    for (; at > 0 && axes[at - 1].first > stride[static_cast<size_t>(i)]; --at) axes[at] = axes[at - 1];
    axes[at] = {stride[static_cast<size_t>(i)], shape[i]};
  }
  int64_t last = 0;  // offset of the farthest element below
  for (size_t i = 0; i < n; ++i) {
    if (axes[i].first <= last) return true;
    last += axes[i].first * (axes[i].second - 1);
  }
  return false;
}

// The same elements with as few axes as possible, two at least; the order of the axes stays.
AnyConstView collapsed(const AnyConstView& v) {
  AnyConstView c = v;
  c.shape = Shape{};
  c.stride = {};
  const auto push = [&c](int64_t dim, int64_t stride) {
    const auto i = static_cast<size_t>(c.shape.rank++);
    c.shape.dim[i] = dim;
    c.stride[i] = stride;
  };
  for (int i = 0; i < v.shape.rank; ++i) {
    const auto a = static_cast<size_t>(i);
    if (v.shape[i] == 1) continue;
    const auto top = static_cast<size_t>(c.shape.rank - 1);
    if (c.shape.rank > 0 && c.stride[top] == v.shape[i] * v.stride[a]) {
      c.shape.dim[top] *= v.shape[i];
      c.stride[top] = v.stride[a];
    } else {
      push(v.shape[i], v.stride[a]);
    }
  }
  if (c.shape.rank == 0) push(1, 1);
  if (c.shape.rank > 1) return c;
  AnyConstView row = c;
  row.shape = Shape{1, c.shape[0]};
  row.stride = {};
  row.stride[0] = c.shape[0] * c.stride[0];
  row.stride[1] = c.stride[0];
  return row;
}

uintptr_t begin_of(const AnyConstView& v) {
  return reinterpret_cast<uintptr_t>(v.data);
}
uintptr_t end_of(const AnyConstView& v) {
  int64_t last = 0;
  for (int i = 0; i < v.shape.rank; ++i) {
    if (v.shape[i] == 0) return begin_of(v);
    last += (v.shape[i] - 1) * v.stride[static_cast<size_t>(i)];
  }
  return begin_of(v) + static_cast<uintptr_t>((last + 1) * dtype_bytes(v.dtype));
}

bool share_memory(const AnyConstView& a, const AnyConstView& b) {
  if (a.null() || b.null()) return false;
  const uintptr_t a_end = end_of(a), b_end = end_of(b);
  if (a_end <= begin_of(b) || b_end <= begin_of(a) || a_end == begin_of(a) || b_end == begin_of(b)) return false;
  const AnyConstView x = collapsed(a), y = collapsed(b);
  const auto rows = [](const AnyConstView& v) {
    return v.shape.rank <= 3 && v.stride[static_cast<size_t>(v.shape.rank - 1)] == 1;
  };
  // What is neither is interleaved in a way that no op has a use for.
  return !rows(x) || !rows(y) || overlap(x, y);
}

std::string name_of(const DLDataType& d) {
  return str("code ", static_cast<int>(d.code), ", ", static_cast<int>(d.bits), " bits, ", d.lanes, " lanes");
}

// Read as a number: whatever lies there.
int32_t type_of(const DLDevice& d) {
  int32_t type = 0;
  std::memcpy(&type, &d.device_type, sizeof(type));
  return type;
}

std::string place_of(const DLDevice& d) {
  switch (const int32_t type = type_of(d)) {
    case kDLCPU:
      return "the CPU";
    case kDLCUDA:
      return str("cuda:", d.device_id);
    case kDLCUDAHost:
      return "the CPU (kDLCUDAHost, pinned memory)";
    case kDLCUDAManaged:
      return str("cuda:", d.device_id, " (kDLCUDAManaged)");
    default:
      return str("a device of another kind (DLPack's ", type, ":", d.device_id, ")");
  }
}

bool lies_on(const DLDevice& d, Device device) {
  const int32_t type = type_of(d);
  if (device.kind == DeviceKind::cpu) return type == kDLCPU || type == kDLCUDAHost;
  return (type == kDLCUDA || type == kDLCUDAManaged) && d.device_id == device.index;
}

}  // namespace

template <class... Parts>
void Arguments::refuse(const char* name, const Parts&... parts) const {
  fail(ErrorCode::invalid_argument, op_, ": ", name, ": ", parts...);
}

void Arguments::refuse_dtype(DType dtype, DType accepted, const char* name) const {
  refuse(name, "dtype ", dtype_name(dtype), ", accepted: ", dtype_name(accepted));
}

void Arguments::refuse_choice(int32_t value, int count, const char* name) const {
  refuse(name, value, ", expected 0..", count - 1);
}

AnyView Arguments::view(const DLTensor* t, const char* name, bool written) {
  if (t == nullptr) refuse(name, "missing (null)");
  DType dtype{};
  if (!dtype_of(t->dtype, &dtype))
    refuse(name, "dtype of ", name_of(t->dtype), ", expected float32, bfloat16 or an integer type of one lane");
  if (t->ndim < 0 || t->ndim > kMaxRank) refuse(name, t->ndim, " axes, expected at most ", kMaxRank);
  if (t->ndim > 0 && t->shape == nullptr) refuse(name, "a null shape of ", t->ndim, " axes");
  Shape shape;
  shape.rank = t->ndim;
  int64_t elements = 1, rows = 1;  // rows: axes of size 0 counted as 1, so that no product of a few wraps
  for (int i = 0; i < t->ndim; ++i) {
    const int64_t dim = t->shape[i];
    if (dim < 0) refuse(name, "size ", dim, " of axis ", i, ", expected 0 or more");
    if (dim > kMostElements / rows) refuse(name, "more than ", kMostElements, " elements");
    rows *= std::max<int64_t>(dim, 1);
    elements *= dim;
    shape.dim[static_cast<size_t>(i)] = dim;
  }
  if (elements == 0 && rows > kMostEmpty)
    refuse(name, "shape ", to_string(shape), ", expected at most ", kMostEmpty, " rows of no element");
  // Strides of axes that nobody steps along mean nothing.
  Strides stride = dense_strides(shape);
  int64_t last = 0;
  if (t->strides != nullptr && elements > 0)
    for (int i = 0; i < t->ndim; ++i) {
      if (t->shape[i] <= 1) continue;
      const int64_t s = t->strides[i];
      if (s < 0) refuse(name, "stride ", s, " of axis ", i, ", expected 0 or more");
      if (s > (kMostElements - last) / (t->shape[i] - 1)) refuse(name, "stride ", s, " of axis ", i, " is too long");
      last += s * (t->shape[i] - 1);
      stride[static_cast<size_t>(i)] = s;
    }
  if (!lies_on(t->device, device_))
    refuse(name, "on ", place_of(t->device), ", expected ",
           device_.kind == DeviceKind::cpu ? "the CPU" : to_string(device_));
  if (written && elements > 0 && overlaps_itself(shape, stride))
    refuse(name, "two of its elements lie at one address, expected one of its own for each that is written");
  if (planning_) return {reinterpret_cast<void*>(uintptr_t{64}), dtype, shape, stride};
  const uintptr_t address = reinterpret_cast<uintptr_t>(t->data) + static_cast<uintptr_t>(t->byte_offset);
  if (t->data == nullptr && elements > 0) refuse(name, "null pointer for shape ", to_string(shape));
  if (elements > 0 && address % static_cast<uintptr_t>(dtype_bytes(dtype)) != 0)
    refuse(name, "an address that is no multiple of ", dtype_bytes(dtype), ", the size of an element");
  // Absent and empty are not the same: an empty view keeps an address.
  const AnyView v(
      elements == 0 && t->data == nullptr ? reinterpret_cast<void*>(uintptr_t{64}) : reinterpret_cast<void*>(address),
      dtype, shape, stride);
  KDELTA_CHECK(count_ < kMost, op_);
  given_[count_++] = {v, name, written};
  return v;
}

DType Arguments::mx_format(int32_t format, const char* name) const {
  switch (format) {
    case KDELTA_FORMAT_F8_E4M3:
      return DType::f8_e4m3;
    case KDELTA_FORMAT_F8_E5M2:
      return DType::f8_e5m2;
    case KDELTA_FORMAT_F4_E2M1:
      return DType::f4_e2m1;
    default:
      refuse(name, format, ", expected 1 (F8_E4M3), 2 (F8_E5M2) or 3 (F4_E2M1)");
  }
}

Matrix Arguments::matrix(const DLTensor* t, const DLTensor* scale, int32_t format, const char* name,
                         const char* scale_name) {
  const AnyConstView codes = in(t, name);
  if (codes.shape.rank != 2) refuse(name, "shape ", to_string(codes.shape), ", expected two axes");
  expect_last_dense(codes.shape, codes.stride, str(op_, ": ", name).c_str());
  Matrix m{.data = codes.data, .dtype = codes.dtype, .rows = codes.dim(0), .cols = codes.dim(1)};
  m.row_bytes = codes.stride[0] * dtype_bytes(codes.dtype);
  if (format == KDELTA_FORMAT_PLAIN) {
    if (scale != nullptr) refuse(scale_name, "given, expected none with plain ", name);
    if (codes.dtype == DType::u8) refuse(name, "bytes, expected a format that says what they mean");
    return m;
  }
  m.dtype = mx_format(format, str(name, "_format").c_str());
  if (codes.dtype != DType::u8) refuse_dtype(codes.dtype, DType::u8, name);
  if (m.dtype == DType::f4_e2m1) m.cols *= 2;
  const View<const uint8_t> scales = in<uint8_t>(scale, scale_name);
  expect_view(scales, {m.rows, (m.cols + kMxBlock - 1) / kMxBlock}, str(op_, ": ", scale_name).c_str());
  m.scale = scales.data;
  m.scale_row_bytes = scales.stride[0];
  return m;
}

void Arguments::expect_apart(bool in_place) const {
  for (size_t i = 0; i < count_; ++i) {
    const Given& a = given_[i];
    if (!a.written) continue;
    for (size_t j = 0; j < count_; ++j) {
      const Given& b = given_[j];
      if (i == j || (b.written && j < i)) continue;
      if (in_place && !b.written && same_view(a.view, b.view)) continue;
      if (share_memory(a.view, b.view)) refuse(a.name, "overlaps ", b.name, ", expected memory of its own");
    }
  }
}

}  // namespace kdelta::c
