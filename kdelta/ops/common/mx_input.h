// Inputs of a product in MXFP8, for linear and grouped_linear: codes and scales become the values that they stand for,
// and these are multiplied like any input. Every value of E4M3 and E5M2 times a scale is one of f32, and of bf16 too
// where it is normal (2^-126 and above), so nothing is rounded a second time and sums keep the product's own order.
#pragma once

#include "kdelta/core/exec.h"
#include "kdelta/core/matrix.h"

namespace kdelta {

// The codes and scales of [T, K], K a multiple of 32: x has an FP8 dtype, scale is [T, K/32] or that rounded up to an
// even number. Throws Error(invalid_argument) naming the arguments "OP: x" and "OP: x_scale" so.
void expect_mx_codes(const AnyConstView& x, const View<const uint8_t>& scale, const char* x_name,
                     const char* scale_name);

// Rows of x that fit `input`: of an x that is codes, whether the matrix wants codes, and in this format.
void expect_input(const AnyConstView& x, const MxInput& input, const char* op);

// True when a product by a matrix that takes `input` must not read x itself.
KDELTA_INLINE bool is_mx_input(const AnyConstView& x, const MxInput& input) {
  return input.quantised() || x.dtype == DType::f8_e4m3 || x.dtype == DType::f8_e5m2;
}

// out [T, K] f32 or bf16: the values of x's codes; of an x that is f32 or bf16, what mx_quantize by `input` and
// mx_dequantize would give, without the codes.
void mx_input_values(const Exec& ex, const AnyConstView& x, const View<const uint8_t>& scale, const MxInput& input,
                     const AnyView& out);

}  // namespace kdelta
