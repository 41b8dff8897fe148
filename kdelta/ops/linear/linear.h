// Dense projection:  out[t, n] = sum_k x[t, k] * w[n, k]  (+ addend[t, n]), fp32 accumulation, rounded once to out's
// dtype. Letters: T tokens, K inputs, N outputs. Weights stay in file order (core/matrix.h); MX formats are dequantised
// exactly on the way. Exact: for one variant the bits of out[t, n] depend on x[t, :], w[n, :] and addend[t, n] alone,
// never on T, N or threads; cuda_wgmma and cuda_fp8 are the exceptions. Which variant runs depends on T on CUDA alone,
// and there only without Options::exact. x f32 is the parity path: every product and sum in fp32. x bf16: products of
// bf16 values, fp32 sums; on CUDA MX weights below 2^-126 may lose bits.
//
// Projections of the same x can be one call: weights that lie apart in the file are the rows of one matrix here, each
// part with an output of its own. The team meets once for all of them and x is packed once; bits are those of a call
// per part. A part may have inputs of its own as well: where a kernel takes those (cuda_mma), that too is one launch.
//
// Quantised inputs (W8A8, W4A8): x may be MXFP8 codes with their scales, as kdelta/ops/mx_quant/mx_quant.h makes them.
// Where w says that it takes MXFP8 inputs (Matrix::input) and x is f32 or bf16, x is quantised by w's rule here; bits
// are those of codes made beforehand. Either way the values of the codes are multiplied, in the order of every other x:
// as f32 when x is, as bf16 when it is; of codes, as `out` is. Values below 2^-126 may count as zero when bf16.
// Hopper's cuda_fp8, where it is forced (both sides E4M3, bf16 outputs), multiplies codes as they are and scales the
// sums of every 32 products in fp32. Such a sum is the tensor core's: terms are cut at about 2^-13 of the largest of
// the 32. The relative error of outputs as a whole stays below 1.9e-3, of which their own rounding is 1.7e-3.
#pragma once

#include <span>

#include "kdelta/core/exec.h"
#include "kdelta/core/matrix.h"

namespace kdelta {

inline constexpr int kMaxLinearParts = 8;

struct LinearPart {
  Matrix w;             // [N', K] in the dtype of the first part's, taking the same inputs
  AnyView out;          // [T, N'] f32 or bf16, row stride free
  AnyConstView x = {};  // null: those of the call; or [T, K] of the call's dtype, which is f32 or bf16
};

struct LinearArgs {
  AnyConstView x;       // [T, K] f32 or bf16, or f8_e4m3 or f8_e5m2 with x_scale (K a multiple of 32); row stride free
  Matrix w;             // [N, K] f32, bf16, MXFP8 or MXFP4 (K a multiple of 32 for the MX formats)
  AnyConstView addend;  // null, or [T, N] in out's dtype, row stride free; may be out itself
  AnyView out;  // [T, N] f32 or bf16, row stride free (a column range of a wider buffer is fine); may not overlap x
  std::span<const LinearPart> more = {};  // further parts, fewer than kMaxLinearParts; outputs may not overlap
  View<const uint8_t> x_scale = {};       // [T, K/32] or that rounded up to an even number; null unless x is codes
};

Cost linear_cost(const LinearArgs& args);

// T = 0 is legal. Throws Error(invalid_argument) naming the argument on wrong shape, dtype, stride or null pointer.
void linear(const Exec& ex, const LinearArgs& args);

}  // namespace kdelta
