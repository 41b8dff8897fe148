// A weight matrix [rows, cols] as it lies in the file: y = W x with W row-major, one row per output. Never owns, never
// repacked. Formats: f32, bf16; MXFP8 = E4M3 or E5M2 codes with one E8M0 scale byte per 32 columns; MXFP4 = two E2M1
// codes per byte (low nibble is the even column) with the same scales (OCP Microscaling v1.0).
#pragma once

#include "kdelta/core/tensor.h"

namespace kdelta {

inline constexpr int kMxBlock = 32;

// How the scale of a block of 32 is chosen when values are quantised: kdelta/ops/mx_quant/mx_quant.h.
enum class MxScaleRule : uint8_t { floor, rceil, even };

// The format in which a matrix takes its inputs. A checkpoint whose description says "MXFP8 activations" was made for
// products of quantised values; what multiplies by such a matrix quantises its input by this rule first.
struct MxInput {
  DType format = DType::bf16;  // f8_e4m3, f8_e5m2; else inputs are taken as they are
  MxScaleRule rule = MxScaleRule::floor;
  KDELTA_INLINE bool quantised() const { return format == DType::f8_e4m3 || format == DType::f8_e5m2; }
  friend bool operator==(const MxInput& a, const MxInput& b) {
    return a.quantised() ? a.format == b.format && a.rule == b.rule : !b.quantised();
  }
};

struct Matrix {
  const void* data = nullptr;      // elements, packed codes for the MX formats
  const uint8_t* scale = nullptr;  // [rows, ceil(cols/32)] E8M0, MX formats only
  DType dtype = DType::bf16;       // f32, bf16, f8_e4m3, f8_e5m2, f4_e2m1
  int64_t rows = 0, cols = 0;
  int64_t row_bytes = 0;  // distance of two rows of data
  int64_t scale_row_bytes = 0;
  MxInput input = {};

  KDELTA_INLINE const uint8_t* row(int64_t r) const { return static_cast<const uint8_t*>(data) + r * row_bytes; }
  KDELTA_INLINE const uint8_t* scale_row(int64_t r) const { return scale + r * scale_row_bytes; }
  bool is_mx() const { return dtype == DType::f8_e4m3 || dtype == DType::f8_e5m2 || dtype == DType::f4_e2m1; }
  // Bytes read when every element is used once. Those between the rows of a column slice are not.
  int64_t bytes() const {
    return rows * ((cols * dtype_bits(dtype) + 7) / 8 + (is_mx() ? (cols + kMxBlock - 1) / kMxBlock : 0));
  }
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
