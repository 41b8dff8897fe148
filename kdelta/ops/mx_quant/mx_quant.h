// OCP Microscaling formats (Microscaling Formats specification v1.0): a block of 32 consecutive columns of a row shares
// one E8M0 scale byte s, value 2^(s - 127), beside FP8 (E4M3, E5M2) or FP4 (E2M1) element codes.
//
//   quantise     s = 127 + max(-127, E), E from the block's largest magnitude `amax` by the scale rule; code = x * 2^-E
//                rounded to nearest, ties to even, saturating. With amax = m * 2^e, 1 <= m < 2, and the format's
//                largest value M * 2^emax (448 = 1.75 * 2^8, 57344 = 1.75 * 2^15, 6 = 1.5 * 2^2):
//                  floor  E = e - emax                   `scale_alg` 0; values above the largest saturate
//                  rceil  E = e - emax + (m > M)         `scale_alg` 1: ceil(log2(amax / largest)); nothing saturates
//                  even   E = e - emax + (m >= 2 - half an ulp of the format): amax is rounded to the format's mantissa
//                         before its exponent is taken
//                A block of zeros has s = 0; one that holds a NaN or an infinity has s = 255 (NaN) and all
//                codes 0. The sign of zero is kept.
//   dequantise   code * 2^(s - 127)
//
// Letters: T tokens, N columns. A last block of fewer than 32 columns is quantised by itself.
#pragma once

#include "kdelta/core/exec.h"
#include "kdelta/core/matrix.h"

namespace kdelta {

// The rule that checkpoints and operator interfaces number as `scale_alg`. Throws Error(invalid_argument) but for 0, 1.
MxScaleRule scale_rule_of(int64_t scale_alg);

// Bytes of the codes and of the scales of n columns.
int64_t mx_code_bytes(DType format, int64_t n);
int64_t mx_scale_bytes(int64_t n);

struct MxQuantizeArgs {
  DType format = DType::f8_e4m3;  // f8_e4m3, f8_e5m2, f4_e2m1
  MxScaleRule rule = MxScaleRule::floor;
  AnyConstView x;  // [T, N], with situ [T, 2N]; f32 or bf16, row stride free
  // Row stride free, must not overlap x. FP8: [T, N]. FP4: [T, ceil(N/2)], the even column in the low four bits, the
  // last high ones 0 when N is odd.
  View<uint8_t> codes;
  View<uint8_t> scale;  // [T, ceil(N/32)], or that rounded up to an even number with 0 in the last place
  // What is quantised is situ(gate, up) of kdelta/ops/activation/activation.h, rounded to bf16 first: gate is the left
  // half of x's columns, up the right, or the reverse.
  bool situ = false;
  float beta = 4, linear_beta = 25;  // beta > 0; linear_beta >= 0, 0: up is used as it is
  bool activate_left = true;
  View<const int64_t> group_counts;  // [E] or null: kdelta/ops/common/group_counts.h
};

// T = 0 and N = 0 are legal. NaN and infinity stay in their block. Throws Error(invalid_argument) naming the argument.
void mx_quantize(const Exec& ex, const MxQuantizeArgs& args);
Cost mx_quantize_cost(const MxQuantizeArgs& args);

struct MxDequantizeArgs {
  DType format = DType::f8_e4m3;
  View<const uint8_t> codes, scale;  // as of MxQuantizeArgs
  AnyView out;                       // [T, N] f32 or bf16, row stride free
};

// Exact in f32, but for products beyond its range, which are infinite; in bf16 too where the result is normal, so an op
// that takes bf16 sees the quantised values themselves. A scale of 255 gives NaN.
void mx_dequantize(const Exec& ex, const MxDequantizeArgs& args);
Cost mx_dequantize_cost(const MxDequantizeArgs& args);

}  // namespace kdelta
