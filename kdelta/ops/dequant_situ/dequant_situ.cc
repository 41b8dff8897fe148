#include "kdelta/ops/dequant_situ/dequant_situ.h"

#include "kdelta/ops/common/cuda/limits.h"
#include "kdelta/ops/common/group_counts.h"
#include "kdelta/ops/dequant_situ/variants.h"

namespace kdelta {
const char* dequant_situ_cuda_refuse(const DequantSituDesc& d) {
  return d.width > cuda::kMaxRowWidth ? "rows wider than 16384" : nullptr;
}

namespace {

constexpr DequantSituVariant kVariants[] = {
#define KDELTA_VARIANT(name, needs, refuse, scratch) \
  {#name, needs, refuse, scratch, KDELTA_RUN(needs, dequant_situ_##name)},
#include "kdelta/ops/dequant_situ/variants.inc"
#undef KDELTA_VARIANT
};

// Present with elements, or absent: a null pointer of any shape.
template <class T>
bool given(const View<T>& v) {
  return !v.null();
}

template <class T>
void expect_absent(const View<T>& v, const char* argument, const std::string& with) {
  if (given(v))
    fail(ErrorCode::invalid_argument, "dequant_situ: ", argument, ": shape ", to_string(v.shape),
         ", expected none with ", with);
}

template <class T>
void expect_one_of(const View<T>& v, std::initializer_list<Shape> shapes, const char* argument) {
  std::string accepted;
  for (const Shape& s : shapes) {
    if (v.shape == s) return expect_view(v, s, str("dequant_situ: ", argument).c_str());
    accepted += (accepted.empty() ? "" : " or ") + to_string(s);
  }
  fail(ErrorCode::invalid_argument, "dequant_situ: ", argument, ": shape ", to_string(v.shape), ", expected ",
       accepted);
}

template <class T>
void expect_given(const View<T>& v, std::initializer_list<Shape> shapes, const char* argument,
                  const std::string& with) {
  if (given(v)) return expect_one_of(v, shapes, argument);
  std::string accepted;
  for (const Shape& s : shapes) accepted += (accepted.empty() ? "" : " or ") + to_string(s);
  fail(ErrorCode::invalid_argument, "dequant_situ: ", argument, ": missing, expected ", accepted, " with ", with);
}

void check_bias(const DequantSituArgs& a) {
  if (given(a.bias)) expect_one_of(a.bias, {a.weight_scale.shape}, "bias");
}

void check_i8(const DequantSituArgs& a, int64_t N) {
  const std::string with = "x of I8";
  expect_given(a.weight_scale, {Shape{2 * N}, Shape{1}}, "weight_scale", with);
  check_bias(a);
  expect_absent(a.activation_scale, "activation_scale", with);
  expect_absent(a.group_counts, "group_counts", with);
}

void check_i32(const DequantSituArgs& a, int64_t T, int64_t N) {
  const std::string with = "x of I32";
  const int64_t E = given(a.group_counts) ? a.group_counts.dim(0) : 0;
  if (a.weight_scale.shape.rank == 2 && !given(a.group_counts))
    fail(ErrorCode::invalid_argument, "dequant_situ: group_counts: missing, expected [E] with weight_scale of shape ",
         to_string(a.weight_scale.shape));
  if (E > 0)
    expect_given(a.weight_scale, {Shape{2 * N}, Shape{E, 2 * N}}, "weight_scale", with);
  else
    expect_given(a.weight_scale, {Shape{2 * N}}, "weight_scale", with);
  expect_given(a.activation_scale, {Shape{T}, Shape{T, 1}}, "activation_scale", with);
  check_bias(a);
}

void check_bf16(const DequantSituArgs& a) {
  const std::string with = "x of BF16";
  expect_absent(a.weight_scale, "weight_scale", with);
  expect_absent(a.activation_scale, "activation_scale", with);
  expect_absent(a.bias, "bias", with);
}

void check_mode(const DequantSituArgs& a, int64_t T, int64_t N) {
  if (a.dynamic) {
    expect_absent(a.quant_scale, "quant_scale", "dynamic quantisation");
    expect_absent(a.quant_offset, "quant_offset", "dynamic quantisation");
    return expect_view(a.scale, {T}, "dequant_situ: scale");
  }
  if (a.x.dtype != DType::i8)
    fail(ErrorCode::invalid_argument, "dequant_situ: dynamic: false, expected true with x of ", dtype_name(a.x.dtype));
  expect_given(a.quant_scale, {Shape{N}, Shape{1}}, "quant_scale", "fixed quantisation");
  if (given(a.quant_offset)) expect_one_of(a.quant_offset, {Shape{N}, Shape{1}}, "quant_offset");
  expect_absent(a.scale, "scale", "fixed quantisation");
}

void check(const DequantSituArgs& a) {
  if (a.x.shape.rank != 2)
    fail(ErrorCode::invalid_argument, "dequant_situ: x: shape ", to_string(a.x.shape), ", expected [T, 2N]");
  expect_dtype(a.x.dtype, {DType::i8, DType::i32, DType::bf16}, "dequant_situ: x");
  expect_view(a.x, a.x.shape, "dequant_situ: x");
  if (a.x.dim(1) % 2 != 0)
    fail(ErrorCode::invalid_argument, "dequant_situ: x: ", a.x.dim(1),
         " columns, expected an even number: gate and up");
  if (!(a.beta > 0)) fail(ErrorCode::invalid_argument, "dequant_situ: beta: ", a.beta, ", expected > 0");
  if (!(a.linear_beta >= 0))
    fail(ErrorCode::invalid_argument, "dequant_situ: linear_beta: ", a.linear_beta,
         ", expected >= 0 (0: up is used as it is)");
  const int64_t T = a.x.dim(0), N = a.x.dim(1) / 2;
  if (given(a.group_counts) && a.group_counts.shape.rank != 1)
    fail(ErrorCode::invalid_argument, "dequant_situ: group_counts: shape ", to_string(a.group_counts.shape),
         ", expected [E]");
  if (a.x.dtype == DType::i8)
    check_i8(a, N);
  else if (a.x.dtype == DType::i32)
    check_i32(a, T, N);
  else
    check_bf16(a);
  check_mode(a, T, N);
  expect_view(a.y, {T, N}, "dequant_situ: y");
}

}  // namespace

std::span<const DequantSituVariant> dequant_situ_variants() {
  return kVariants;
}

int64_t dequant_situ_scratch(const DequantSituDesc& d) {
  return d.target.threads * dequant_situ_row(d.width) * static_cast<int64_t>(sizeof(float));
}

int64_t dequant_situ_rows(const DequantSituArgs& a) {
  return rows_in_use(a.group_counts, a.x.dim(0), "dequant_situ: group_counts");
}

int64_t dequant_situ_expert(const DequantSituArgs& a, int64_t t) {
  if (a.group_counts.null()) return 0;
  int64_t e = 0, end = *a.group_counts.at(0);
  while (end <= t) end += *a.group_counts.at(++e);
  return e;
}

Cost dequant_situ_cost(const DequantSituArgs& a) {
  const int64_t T = a.x.dim(0), N = a.x.dim(1) / 2;
  return {.bytes = static_cast<double>(T * (2 * N * dtype_bytes(a.x.dtype) + N)),
          .flops = 6.0 * static_cast<double>(T * N)};
}

void dequant_situ(const Exec& ex, const DequantSituArgs& args) {
  check(args);
  if (!ex.planning && ex.device.kind == DeviceKind::cpu)
    dequant_situ_rows(args);  // wrong counts are refused before anything is written
  const DequantSituDesc desc{target_of(ex), args.x.dim(0), args.x.dim(1) / 2};
  run_op(ex, "dequant_situ", dequant_situ_variants(), args, desc, dequant_situ_cost(args));
}

}  // namespace kdelta
