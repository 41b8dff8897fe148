#include "kdelta/ops/grouped_linear/grouped_linear.h"

#include <cstdio>
#include <cstring>

#include "kdelta/ops/common/cpu/amx_sizes.h"
#include "kdelta/ops/common/cpu/pack_sizes.h"
#include "kdelta/ops/common/mx_input.h"
#include "kdelta/ops/grouped_linear/cpu_kernel.h"
#include "kdelta/ops/grouped_linear/packed_plan.h"
#include "kdelta/ops/grouped_linear/variants.h"

namespace kdelta {
namespace {

constexpr GroupedLinearVariant kVariants[] = {
#define KDELTA_VARIANT(name, needs, refuse, scratch) \
  {#name, needs, refuse, scratch, KDELTA_RUN(needs, grouped_linear_##name)},
#include "kdelta/ops/grouped_linear/variants.inc"
#undef KDELTA_VARIANT
};

void check_experts(std::span<const Matrix> w, const Matrix& like, int64_t K, const char* which) {
  for (size_t e = 0; e < w.size(); ++e) {
    char name[48];  // every call of a decode step comes by here: no allocation for a name that is hardly ever read
    std::snprintf(name, sizeof(name), "grouped_linear: %s[%zu]", which, e);
    expect_matrix(w[e], like.rows, K, name);
    expect_dtype(w[e].dtype, {like.dtype}, name);
    if (!(w[e].input == like.input)) fail(ErrorCode::invalid_argument, name, ": takes other inputs than w[0]");
  }
}

void check_up(const GroupedLinearArgs& a, int64_t K) {
  if (a.up_w.empty()) return;
  if (a.up_w.size() != a.w.size())
    fail(ErrorCode::invalid_argument, "grouped_linear: up_w: ", a.up_w.size(), " experts, expected ", a.w.size());
  check_experts(a.up_w, a.w[0], K, "up_w");
  if (a.activation == ActivationKind::situ && !(a.beta > 0))
    fail(ErrorCode::invalid_argument, "grouped_linear: beta: ", a.beta, ", expected > 0");
  if (a.activation == ActivationKind::situ && !(a.linear_beta >= 0))
    fail(ErrorCode::invalid_argument, "grouped_linear: linear_beta: ", a.linear_beta, ", expected >= 0");
}

void check(const GroupedLinearArgs& a) {
  if (a.x.shape.rank != 2)
    fail(ErrorCode::invalid_argument, "grouped_linear: x: shape ", to_string(a.x.shape), ", expected [R, K]");
  if (a.out.shape.rank != 2)
    fail(ErrorCode::invalid_argument, "grouped_linear: out: shape ", to_string(a.out.shape), ", expected [P, N]");
  const int64_t R = a.x.dim(0), K = a.x.dim(1), P = a.out.dim(0);
  if (K == 0) fail(ErrorCode::invalid_argument, "grouped_linear: x: width 0");
  if (a.w.empty()) fail(ErrorCode::invalid_argument, "grouped_linear: w: no experts");
  check_experts(a.w, a.w[0], K, "w");
  check_up(a, K);
  expect_activation(a.x, {a.row.null() ? P : R, K}, "grouped_linear: x");
  expect_input(a.x, a.w[0].input, "grouped_linear");
  expect_activation(a.out, {P, a.w[0].rows}, "grouped_linear: out");
  if (!a.row.null()) expect_view(a.row, {P}, "grouped_linear: row");
  expect_view(a.expert_begin, {static_cast<int64_t>(a.w.size()) + 1}, "grouped_linear: expert_begin");
}

// Host-readable contents, hence the CPU only and never while planning.
void check_contents(const GroupedLinearArgs& a) {
  const int32_t* begin = a.expert_begin.data;
  const auto E = static_cast<int64_t>(a.w.size());
  if (begin[0] != 0) fail(ErrorCode::invalid_argument, "grouped_linear: expert_begin[0]: ", begin[0], ", expected 0");
  for (int64_t e = 0; e < E; ++e)
    if (begin[e + 1] < begin[e])
      fail(ErrorCode::invalid_argument, "grouped_linear: expert_begin[", e + 1, "]: ", begin[e + 1],
           ", expected >= ", begin[e]);
  if (begin[E] > a.out.dim(0))
    fail(ErrorCode::invalid_argument, "grouped_linear: expert_begin[", E, "]: ", begin[E],
         ", expected <= ", a.out.dim(0));
  for (int64_t p = 0; p < begin[E] && !a.row.null(); ++p)
    if (a.row.data[p] < 0 || a.row.data[p] >= a.x.dim(0))
      fail(ErrorCode::invalid_argument, "grouped_linear: row[", p, "]: ", a.row.data[p], ", expected 0 to ",
           a.x.dim(0) - 1);
}

// Whether rows begin at 16 bytes. Those of one pair count as those of many: choices must not depend on P.
bool is_aligned(const GroupedLinearArgs& a) {
  const auto begins16 = [](const void* data, int64_t row_bytes) {
    return reinterpret_cast<uintptr_t>(data) % 16 == 0 && row_bytes % 16 == 0;
  };
  bool aligned = begins16(a.x.data, a.x.stride[0] * dtype_bytes(a.x.dtype));
  for (const auto all : {a.w, a.up_w})
    for (const Matrix& w : all) aligned = aligned && begins16(w.data, w.row_bytes);
  return aligned;
}

bool has_scale_words(const GroupedLinearArgs& a) {
  for (const auto all : {a.w, a.up_w})
    for (const Matrix& w : all)
      if (reinterpret_cast<uintptr_t>(w.scale) % 4 != 0 || w.scale_row_bytes % 4 != 0) return false;
  return true;
}

// Whether one step leads from every expert to the next, a whole number of rows.
bool is_even(std::span<const Matrix> w) {
  const auto distance = [](const void* from, const void* to) {
    return static_cast<int64_t>(reinterpret_cast<uintptr_t>(to) - reinterpret_cast<uintptr_t>(from));
  };
  const int64_t step = w.size() > 1 ? distance(w[0].data, w[1].data) : 0;
  bool even = step >= 0 && w[0].row_bytes > 0 && step % w[0].row_bytes == 0;
  for (size_t e = 1; e < w.size() && even; ++e)
    even = distance(w[e - 1].data, w[e].data) == step && w[e].row_bytes == w[0].row_bytes &&
           w[e].scale_row_bytes == w[0].scale_row_bytes &&
           distance(w[e - 1].scale, w[e].scale) == distance(w[0].scale, w[1].scale);
  return even;
}

// Pairs that no expert serves.
void zero_rest(const GroupedLinearArgs& a) {
  const int64_t element = dtype_bytes(a.out.dtype);
  for (int64_t p = a.expert_begin.data[a.w.size()]; p < a.out.dim(0); ++p)
    std::memset(static_cast<char*>(a.out.data) + p * a.out.stride[0] * element, 0,
                static_cast<size_t>(a.out.dim(1) * element));
}

}  // namespace

std::span<const GroupedLinearVariant> grouped_linear_variants() {
  return kVariants;
}

const char* grouped_linear_refuse_f32(const GroupedLinearDesc& d) {
  if (d.target.device == DeviceKind::cpu && d.gated) return grouped_linear_refuse_gated(d);
  if (d.x != DType::bf16) return "x is f32: products and sums stay fp32";
  return d.w == DType::f32 ? "w is f32" : nullptr;
}

const char* grouped_linear_refuse_gated(const GroupedLinearDesc& d) {
  return d.gated ? "gated: it makes one product at a time" : nullptr;
}

int64_t grouped_linear_f32_scratch(const GroupedLinearDesc& d) {
  return expert_list_bytes(d.E) + d.target.threads * dot_scratch_bytes(d.w, d.K);
}
int64_t grouped_linear_pack_scratch(const GroupedLinearDesc& d) {
  return grouped_packed_bytes<PackSizes>(d.P, d.E, d.K, d.target.threads);
}

int64_t grouped_linear_tile_scratch(const GroupedLinearDesc& d) {
  return grouped_packed_bytes<TileSizes>(d.P, d.E, d.K, d.target.threads);
}

Cost grouped_linear_cost(const GroupedLinearArgs& a) {
  const auto P = static_cast<double>(a.out.dim(0)), K = static_cast<double>(a.x.dim(1)),
             N = static_cast<double>(a.out.dim(1));
  const double experts = std::min(P, static_cast<double>(a.w.size())), products = a.up_w.empty() ? 1 : 2;
  return {.bytes = products * experts * static_cast<double>(a.w[0].bytes()) +
                   P * K * static_cast<double>(dtype_bytes(a.x.dtype)) +
                   P * N * static_cast<double>(dtype_bytes(a.out.dtype)),
          .flops = products * 2 * P * K * N};
}

namespace {

GroupedLinearDesc describe(const Exec& ex, const GroupedLinearArgs& a) {
  const Matrix& w = a.w[0];
  GroupedLinearDesc d{target_of(ex), a.x.dtype, w.dtype, a.out.dtype, a.out.dim(0), static_cast<int64_t>(a.w.size()),
                      w.cols,        w.rows};
  d.aligned = is_aligned(a), d.scale_words = has_scale_words(a), d.even = is_even(a.w), d.exact = ex.options->exact,
  d.gated = !a.up_w.empty();
  return d;
}

}  // namespace

bool grouped_linear_gates(const Exec& ex, const GroupedLinearArgs& args) {
  check(args);
  GroupedLinearDesc d = describe(ex, args);
  d.gated = false;
  const GroupedLinearVariant& row = choose("grouped_linear", grouped_linear_variants(), d, *ex.options);
  d.gated = true;
  return refusal(row, d) == nullptr;
}

void grouped_linear(const Exec& ex, const GroupedLinearArgs& args) {
  check(args);
  const Matrix& w = args.w[0];
  if (ex.device.kind == DeviceKind::cpu && !ex.planning) {
    check_contents(args);
    zero_rest(args);
  }
  Arena::Scope scope(*ex.scratch);
  GroupedLinearArgs product = args;
  if (w.input.quantised()) {
    const AnyView values = ex.scratch->take(args.x.dtype, args.x.shape);
    mx_input_values(ex, args.x, {}, w.input, values);
    product.x = values;
  }
  run_op(ex, "grouped_linear", grouped_linear_variants(), product, describe(ex, product), grouped_linear_cost(args));
}

}  // namespace kdelta
