// A weight matrix [rows, cols] as it lies in the file: y = W x with W row-major, one row per output. Never owns, never
// repacked. Formats: f32, bf16; MXFP8 = E4M3 or E5M2 codes with one E8M0 scale byte per 32 columns; MXFP4 = two E2M1
// codes per byte (low nibble is the even column) with the same scales (OCP Microscaling v1.0).
#pragma once

#include "kdelta/core/tensor.h"

namespace kdelta {

inline constexpr int kMxBlock = 32;

struct Matrix {
  const void* data = nullptr;      // elements, packed codes for the MX formats
  const uint8_t* scale = nullptr;  // [rows, ceil(cols/32)] E8M0, MX formats only
  DType dtype = DType::bf16;       // f32, bf16, f8_e4m3, f8_e5m2, f4_e2m1
  int64_t rows = 0, cols = 0;
  int64_t row_bytes = 0;  // distance of two rows of data
  int64_t scale_row_bytes = 0;

  KDELTA_INLINE const uint8_t* row(int64_t r) const { return static_cast<const uint8_t*>(data) + r * row_bytes; }
  KDELTA_INLINE const uint8_t* scale_row(int64_t r) const { return scale + r * scale_row_bytes; }
  bool is_mx() const { return dtype == DType::f8_e4m3 || dtype == DType::f8_e5m2 || dtype == DType::f4_e2m1; }
  // Bytes read when every element is used once.
  int64_t bytes() const { return rows * (row_bytes + (is_mx() ? scale_row_bytes : 0)); }
  // Rows [begin, begin+count): a view.
  Matrix slice_rows(int64_t begin, int64_t count) const;
};

// A dense matrix over `data`; MX formats also need `scale`.
Matrix dense_matrix(const void* data, DType dtype, int64_t rows, int64_t cols, const uint8_t* scale = nullptr);

// Checks of an op's entry: dtype known, pointers present, MX columns a multiple of 32, shape as wanted.
void expect_matrix(const Matrix& m, int64_t rows, int64_t cols, const char* argument);

// One row in fp32, exact for every format (NaN scale gives NaN). The definition that fast code is tested against.
void dequantize_row(const Matrix& m, int64_t row, float* out);

}  // namespace kdelta
