#include "kdelta/ops/linear/linear.h"

#include <algorithm>
#include <string_view>

#include "kdelta/ops/common/cpu/amx_sizes.h"
#include "kdelta/ops/common/cpu/dot.h"
#include "kdelta/ops/common/cpu/pack_sizes.h"
#include "kdelta/ops/common/cpu/packed.h"
#include "kdelta/ops/common/mx_input.h"
#include "kdelta/ops/linear/variants.h"

namespace kdelta {
namespace {

constexpr LinearVariant kVariants[] = {
#define KDELTA_VARIANT(name, needs, refuse, scratch) {#name, needs, refuse, scratch, KDELTA_RUN(needs, linear_##name)},
#include "kdelta/ops/linear/variants.inc"
#undef KDELTA_VARIANT
};

void check_part(const LinearArgs& a, const LinearPart& p) {
  const int64_t T = a.x.dim(0), K = a.x.dim(1);
  expect_matrix(p.w, p.w.rows, K, "linear: more: w");
  if (p.w.dtype != a.w.dtype)
    fail(ErrorCode::invalid_argument, "linear: more: w: dtype ", dtype_name(p.w.dtype), ", the first part has ",
         dtype_name(a.w.dtype));
  if (!(p.w.input == a.w.input))
    fail(ErrorCode::invalid_argument, "linear: more: w: takes other inputs than the first part");
  expect_activation(p.out, {T, p.w.rows}, "linear: more: out");
}

// What is checked once codes are known to be codes.
void check_own_inputs(const LinearArgs& a) {
  for (const LinearPart& p : a.more) {
    if (p.x.null()) continue;
    expect_activation(p.x, {a.x.dim(0), a.x.dim(1)}, "linear: more: x");
    expect_dtype(p.x.dtype, {a.x.dtype}, "linear: more: x");
  }
}

bool is_codes(const AnyConstView& x) {
  return x.dtype == DType::f8_e4m3 || x.dtype == DType::f8_e5m2;
}

void check_input(const LinearArgs& a) {
  if (is_codes(a.x))
    expect_mx_codes(a.x, a.x_scale, "linear: x", "linear: x_scale");
  else
    expect_activation(a.x, a.x.shape, "linear: x");
  if (!is_codes(a.x) && a.x_scale.data != nullptr)
    fail(ErrorCode::invalid_argument, "linear: x_scale: given, but x is ", dtype_name(a.x.dtype), ", expected codes");
  expect_input(a.x, a.w.input, "linear");
}

void check(const LinearArgs& a) {
  if (a.x.shape.rank != 2)
    fail(ErrorCode::invalid_argument, "linear: x: shape ", to_string(a.x.shape), ", expected [T, K]");
  const int64_t T = a.x.dim(0), K = a.x.dim(1), N = a.w.rows;
  if (K == 0) fail(ErrorCode::invalid_argument, "linear: x: width 0");
  check_input(a);
  expect_matrix(a.w, N, K, "linear: w");
  expect_activation(a.out, {T, N}, "linear: out");
  if (a.more.size() >= static_cast<size_t>(kMaxLinearParts))
    fail(ErrorCode::invalid_argument, "linear: more: ", a.more.size(), " parts, expected fewer than ", kMaxLinearParts);
  for (const LinearPart& p : a.more) check_part(a, p);
  check_own_inputs(a);
  if (a.addend.null()) return;
  expect_view(a.addend, {T, N}, "linear: addend");
  expect_dtype(a.addend.dtype, {a.out.dtype}, "linear: addend");
}

// Whether rows begin at a multiple of `bytes`, those of one token as those of many: a choice by T would break
// exactness.
bool begins_at(const void* data, int64_t row_bytes, int bytes) {
  return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(bytes) == 0 && row_bytes % bytes == 0;
}
bool begins_at(const AnyConstView& v, int bytes) {
  return begins_at(v.data, v.stride[0] * dtype_bytes(v.dtype), bytes);
}

LinearDesc describe(const Exec& ex, const LinearArgs& a) {
  const DType x = is_codes(a.x) ? a.out.dtype : a.x.dtype;  // of the values that are multiplied
  LinearDesc d{target_of(ex), x, a.w.dtype, a.out.dtype, a.x.dim(0), a.w.cols, a.w.rows};
  const bool quantised = is_mx_input(a.x, a.w.input);
  if (quantised) d.input = is_codes(a.x) ? a.x.dtype : a.w.input.format;
  d.codes_aligned = !is_codes(a.x) || begins_at(a.x, 16);
  d.aligned = (quantised || begins_at(a.x, 16)) && begins_at(a.w.data, a.w.row_bytes, 16);  // values lie in scratch
  d.bf16_out = a.out.dtype == DType::bf16;
  d.out_words = begins_at(a.out, 4);
  for (const LinearPart& p : a.more) {
    d.N += p.w.rows;
    d.aligned = d.aligned && begins_at(p.w.data, p.w.row_bytes, 16);
    d.out_words = d.out_words && begins_at(p.out, 4);
    d.aligned = d.aligned && (p.x.null() || begins_at(p.x, 16));
    d.bf16_out = d.bf16_out && p.out.dtype == DType::bf16;
  }
  d.exact = ex.options->exact;
  return d;
}

// Whether the row that serves the call takes codes. A plan is made for any row.
bool multiplies_codes(const Exec& ex, const LinearDesc& d) {
  if (ex.planning || d.input != DType::f8_e4m3) return false;
  return std::string_view(choose("linear", linear_variants(), d, *ex.options).name) == "cuda_fp8";
}

}  // namespace

std::span<const LinearVariant> linear_variants() {
  return kVariants;
}

const char* linear_refuse_f32(const LinearDesc& d) {
  if (d.x != DType::bf16) return "x is f32: products and sums stay fp32";
  return d.w == DType::f32 ? "w is f32" : nullptr;
}

int64_t linear_f32_scratch(const LinearDesc& d) {
  return d.target.threads * dot_scratch_bytes(d.w, d.K);
}
int64_t linear_pack_scratch(const LinearDesc& d) {
  return packed_scratch_bytes<PackSizes>(d.T, d.K, d.target.threads);
}

int64_t linear_tile_scratch(const LinearDesc& d) {
  return packed_scratch_bytes<TileSizes>(d.T, d.K, d.target.threads);
}

Cost linear_cost(const LinearArgs& a) {
  const auto T = static_cast<double>(a.x.dim(0)), K = static_cast<double>(a.w.cols);
  const double scales = is_codes(a.x) ? T * K / kMxBlock : 0;
  Cost cost{.bytes = T * K * static_cast<double>(dtype_bytes(a.x.dtype)) + scales, .flops = 0};
  const auto add = [&](const Matrix& w, int64_t out_bytes) {
    const auto N = static_cast<double>(w.rows);
    cost.bytes += static_cast<double>(w.bytes()) + T * N * static_cast<double>(out_bytes);
    cost.flops += 2 * T * K * N;
  };
  add(a.w, dtype_bytes(a.out.dtype) * (a.addend.null() ? 1 : 2));
  for (const LinearPart& p : a.more) {
    add(p.w, dtype_bytes(p.out.dtype));
    if (!p.x.null()) cost.bytes += T * K * static_cast<double>(dtype_bytes(p.x.dtype));
  }
  return cost;
}

namespace {

// Whether parts with inputs of their own go in one launch: no row but cuda_mma takes them, and none that is better for
// the call without them is given up.
bool takes_own_inputs(const Exec& ex, const LinearArgs& a) {
  if (ex.device.kind == DeviceKind::cpu || a.w.input.quantised()) return false;
  return std::string_view(choose("linear", linear_variants(), describe(ex, a), *ex.options).name) == "cuda_mma";
}

// A call for the parts with the call's inputs, and one for every other part.
void split_by_inputs(const Exec& ex, const LinearArgs& args) {
  LinearPart same[kMaxLinearParts];
  size_t count = 0;
  for (const LinearPart& p : args.more)
    if (p.x.null()) same[count++] = p;
  LinearArgs first = args;
  first.more = std::span<const LinearPart>(same, count);
  linear(ex, first);
  for (const LinearPart& p : args.more)
    if (!p.x.null()) linear(ex, {.x = p.x, .w = p.w, .out = p.out});
}

}  // namespace

void linear(const Exec& ex, const LinearArgs& args) {
  check(args);
  if (std::any_of(args.more.begin(), args.more.end(), [](const LinearPart& p) { return !p.x.null(); }) &&
      !takes_own_inputs(ex, args))
    return split_by_inputs(ex, args);
  Arena::Scope scope(*ex.scratch);
  const LinearDesc desc = describe(ex, args);
  LinearArgs product = args;
  if (is_mx_input(args.x, args.w.input) && !multiplies_codes(ex, desc)) {
    const AnyView values = ex.scratch->take(desc.x, args.x.shape);
    mx_input_values(ex, args.x, args.x_scale, args.w.input, values);
    product.x = values;
  }
  run_op(ex, "linear", linear_variants(), product, desc, linear_cost(args));
}

}  // namespace kdelta
