#include "kdelta/core/matrix.h"

#include <cstring>

#include "kdelta/core/check.h"

namespace kdelta {

Matrix Matrix::slice_rows(int64_t begin, int64_t count) const {
  KDELTA_CHECK(begin >= 0 && count >= 0 && begin + count <= rows, "rows ", begin, "+", count, " of ", rows);
  Matrix m = *this;
  if (data != nullptr) m.data = row(begin);
  if (scale != nullptr) m.scale = scale_row(begin);
  m.rows = count;
  return m;
}

Matrix dense_matrix(const void* data, DType dtype, int64_t rows, int64_t cols, const uint8_t* scale) {
  Matrix m{.data = data, .scale = scale, .dtype = dtype, .rows = rows, .cols = cols};
  m.row_bytes = (cols * dtype_bits(dtype) + 7) / 8;
  m.scale_row_bytes = m.is_mx() ? (cols + kMxBlock - 1) / kMxBlock : 0;
  return m;
}

void expect_matrix(const Matrix& m, int64_t rows, int64_t cols, const char* argument) {
  expect_dtype(m.dtype, {DType::f32, DType::bf16, DType::f8_e4m3, DType::f8_e5m2, DType::f4_e2m1}, argument);
  expect_shape(Shape{m.rows, m.cols}, Shape{rows, cols}, argument);
  expect_not_null(m.data, Shape{rows, cols}, argument);
  if (m.is_mx()) {
    if (cols % kMxBlock != 0)
      fail(ErrorCode::invalid_argument, argument, ": ", cols, " columns of ", dtype_name(m.dtype),
           ", expected a multiple of the scale block ", kMxBlock);
    if (rows * cols != 0 && m.scale == nullptr) fail(ErrorCode::invalid_argument, argument, ": null scale pointer");
  }
}

namespace {

void dequantize_mx_row(const Matrix& m, int64_t row, float* out) {
  const uint8_t* codes = m.row(row);
  const uint8_t* scales = m.scale_row(row);
  for (int64_t c = 0; c < m.cols; ++c) {
    float element = 0;
    switch (m.dtype) {
      case DType::f4_e2m1:
        element = e2m1_to_float(static_cast<uint8_t>(codes[c / 2] >> (c % 2 * 4)));
        break;
      case DType::f8_e4m3:
        element = f8_e4m3_to_float(codes[c]);
        break;
      case DType::f8_e5m2:
        element = f8_e5m2_to_float(codes[c]);
        break;
      default:
        KDELTA_UNREACHABLE("MX dtype", m.dtype);
    }
    out[c] = element * e8m0_to_float(scales[c / kMxBlock]);
  }
}

}  // namespace

void dequantize_row(const Matrix& m, int64_t row, float* out) {
  switch (m.dtype) {
    case DType::f32:
      std::memcpy(out, m.row(row), static_cast<size_t>(m.cols) * sizeof(float));
      return;
    case DType::bf16:
      for (int64_t c = 0; c < m.cols; ++c) {
        bf16 x;
        std::memcpy(&x, m.row(row) + 2 * c, sizeof(x));
        out[c] = to_float(x);
      }
      return;
    default:
      dequantize_mx_row(m, row, out);
  }
}

}  // namespace kdelta
