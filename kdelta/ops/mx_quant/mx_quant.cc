#include "kdelta/ops/mx_quant/mx_quant.h"

#include "kdelta/core/matrix.h"
#include "kdelta/ops/common/group_counts.h"
#include "kdelta/ops/mx_quant/variants.h"

namespace kdelta {
namespace {

constexpr MxQuantizeVariant kQuantize[] = {
#define KDELTA_VARIANT(name, needs, refuse, scratch) \
  {#name, needs, refuse, scratch, KDELTA_RUN(needs, mx_quantize_##name)},
#include "kdelta/ops/mx_quant/variants.inc"
#undef KDELTA_VARIANT
};

constexpr MxDequantizeVariant kDequantize[] = {
#define KDELTA_VARIANT(name, needs, refuse, scratch) \
  {#name, needs, refuse, scratch, KDELTA_RUN(needs, mx_dequantize_##name)},
#include "kdelta/ops/mx_quant/variants.inc"
#undef KDELTA_VARIANT
};

// What messages call the arguments. Steps come by here: no string is built for a name that is hardly ever read.
struct CodeNames {
  const char *format, *codes, *scale;
};

template <class V>
void check_codes(const V& codes, const V& scale, DType format, int64_t T, int64_t N, const CodeNames& names) {
  expect_dtype(format, {DType::f8_e4m3, DType::f8_e5m2, DType::f4_e2m1}, names.format);
  expect_view(codes, {T, mx_code_bytes(format, N)}, names.codes);
  const int64_t blocks = mx_scale_bytes(N), even = blocks + blocks % 2;
  const bool padded = scale.shape.rank == 2 && scale.dim(1) == even;
  expect_view(scale, {T, padded ? even : blocks}, names.scale);
}

void check_situ(const MxQuantizeArgs& a) {
  if (a.x.dim(1) % 2 != 0)
    fail(ErrorCode::invalid_argument, "mx_quantize: x: ", a.x.dim(1), " columns, expected an even number: gate and up");
  if (!(a.beta > 0)) fail(ErrorCode::invalid_argument, "mx_quantize: beta: ", a.beta, ", expected > 0");
  if (!(a.linear_beta >= 0))
    fail(ErrorCode::invalid_argument, "mx_quantize: linear_beta: ", a.linear_beta,
         ", expected >= 0 (0: up is used as it is)");
}

void check(const MxQuantizeArgs& a) {
  if (a.x.shape.rank != 2)
    fail(ErrorCode::invalid_argument, "mx_quantize: x: shape ", to_string(a.x.shape), ", expected [T, N]");
  expect_activation(a.x, a.x.shape, "mx_quantize: x");
  if (a.situ) check_situ(a);
  check_codes(a.codes, a.scale, a.format, a.x.dim(0), mx_width(a),
              {"mx_quantize: format", "mx_quantize: codes", "mx_quantize: scale"});
  if (a.group_counts.null()) return;
  if (a.group_counts.shape.rank != 1)
    fail(ErrorCode::invalid_argument, "mx_quantize: group_counts: shape ", to_string(a.group_counts.shape),
         ", expected [E]");
  expect_view(a.group_counts, a.group_counts.shape, "mx_quantize: group_counts");
}

void check(const MxDequantizeArgs& a) {
  if (a.out.shape.rank != 2)
    fail(ErrorCode::invalid_argument, "mx_dequantize: out: shape ", to_string(a.out.shape), ", expected [T, N]");
  expect_activation(a.out, a.out.shape, "mx_dequantize: out");
  check_codes(a.codes, a.scale, a.format, a.out.dim(0), a.out.dim(1),
              {"mx_dequantize: format", "mx_dequantize: codes", "mx_dequantize: scale"});
}

}  // namespace

MxScaleRule scale_rule_of(int64_t scale_alg) {
  if (scale_alg != 0 && scale_alg != 1)
    fail(ErrorCode::invalid_argument, "scale_alg: ", scale_alg, ", accepted: 0 (floor), 1 (rceil)");
  return scale_alg == 0 ? MxScaleRule::floor : MxScaleRule::rceil;
}

int64_t mx_code_bytes(DType format, int64_t n) {
  return format == DType::f4_e2m1 ? (n + 1) / 2 : n;
}

int64_t mx_scale_bytes(int64_t n) {
  return (n + kMxBlock - 1) / kMxBlock;
}

int64_t mx_rows(const MxQuantizeArgs& a) {
  return rows_in_use(a.group_counts, a.x.dim(0), "mx_quantize: group_counts");
}

std::span<const MxQuantizeVariant> mx_quantize_variants() {
  return kQuantize;
}

std::span<const MxDequantizeVariant> mx_dequantize_variants() {
  return kDequantize;
}

Cost mx_quantize_cost(const MxQuantizeArgs& a) {
  const int64_t T = a.x.dim(0), N = mx_width(a);
  return {.bytes = static_cast<double>(
              T * (a.x.dim(1) * dtype_bytes(a.x.dtype) + mx_code_bytes(a.format, N) + mx_scale_bytes(N))),
          .flops = 2.0 * static_cast<double>(T * N)};
}

Cost mx_dequantize_cost(const MxDequantizeArgs& a) {
  const int64_t T = a.out.dim(0), N = a.out.dim(1);
  return {
      .bytes = static_cast<double>(T * (N * dtype_bytes(a.out.dtype) + mx_code_bytes(a.format, N) + mx_scale_bytes(N))),
      .flops = static_cast<double>(T * N)};
}

void mx_quantize(const Exec& ex, const MxQuantizeArgs& args) {
  check(args);
  if (!ex.planning && ex.device.kind == DeviceKind::cpu)
    mx_rows(args);  // wrong counts are refused before anything is written
  const MxDesc desc{target_of(ex), args.x.dim(0), mx_width(args)};
  run_op(ex, "mx_quantize", mx_quantize_variants(), args, desc, mx_quantize_cost(args));
}

void mx_dequantize(const Exec& ex, const MxDequantizeArgs& args) {
  check(args);
  const MxDesc desc{target_of(ex), args.out.dim(0), args.out.dim(1)};
  run_op(ex, "mx_dequantize", mx_dequantize_variants(), args, desc, mx_dequantize_cost(args));
}

}  // namespace kdelta
