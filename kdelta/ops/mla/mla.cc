#include "kdelta/ops/mla/mla.h"

#include <algorithm>

#include "kdelta/ops/common/alignment.h"
#include "kdelta/ops/mla/paged.h"
#include "kdelta/ops/mla/variants.h"

namespace kdelta {
namespace {

constexpr MlaVariant kVariants[] = {
#define KDELTA_VARIANT(name, needs, refuse, scratch) {#name, needs, refuse, scratch, KDELTA_RUN(needs, mla_##name)},
#include "kdelta/ops/mla/variants.inc"
#undef KDELTA_VARIANT
};

void expect_width(int64_t width, int64_t least, const char* name) {
  constexpr int64_t kMost = int64_t{1} << 30;  // so that sums and products with heads stay in 64 bits
  if (width < least || width > kMost)
    fail(ErrorCode::invalid_argument, "mla: ", name, ": ", width, ", expected ", least, " to ", kMost);
}

bool matrix_aligned16(const Matrix& m) {
  return reinterpret_cast<uintptr_t>(m.data) % 16 == 0 && m.row_bytes % 16 == 0;
}

void expect_cache(const AnyConstView& cache, int64_t width, const char* argument) {
  if (cache.shape.rank != 3 || cache.dim(1) < 1)
    fail(ErrorCode::invalid_argument, argument, ": shape ", to_string(cache.shape), ", expected [page count, G, L+R]");
  expect_activation(cache, {cache.dim(0), cache.dim(1), width}, argument);
  if (cache.stride != dense_strides(cache.shape))
    fail(ErrorCode::invalid_argument, argument, ": expected dense strides");
}

void check(const MlaArgs& a) {
  expect_width(a.nope, 1, "nope");
  expect_width(a.rope, 0, "rope");
  expect_width(a.value, 1, "value");
  expect_width(a.latent, 1, "latent");
  if (a.q.shape.rank != 3)
    fail(ErrorCode::invalid_argument, "mla: q: shape ", to_string(a.q.shape), ", expected [T, H, nope+rope]");
  const int64_t T = a.q.dim(0), H = a.q.dim(1);
  expect_activation(a.q, {T, H, a.nope + a.rope}, "mla: q");
  expect_cache(a.cache, a.latent + a.rope, "mla: cache");
  expect_matrix(a.kv_b, H * (a.nope + a.value), a.latent, "mla: kv_b");
  expect_paged(a.seq, "mla");
  if (!(a.scale > 0)) fail(ErrorCode::invalid_argument, "mla: scale: ", a.scale, ", expected > 0");
  expect_activation(a.out, {T, H, a.value}, "mla: out");
  if (a.out.dtype != a.q.dtype)
    fail(ErrorCode::invalid_argument, "mla: out: dtype ", dtype_name(a.out.dtype), ", q has ", dtype_name(a.q.dtype));
}

}  // namespace

std::span<const MlaVariant> mla_variants() {
  return kVariants;
}

// Host-known upper bound: every sequence as long as max_context allows. Prefill counts the expanded form, decode the
// absorbed one.
Cost mla_cost(const MlaArgs& a) {
  const double H = static_cast<double>(a.q.dim(1)), T = static_cast<double>(a.q.dim(0));
  const double L = static_cast<double>(a.latent), R = static_cast<double>(a.rope);
  const double NV = static_cast<double>(a.nope + a.value), context = static_cast<double>(a.seq.max_context);
  const double prefill = a.seq.n_prefill, decode = a.seq.n_decode;
  const double prefill_tokens = prefill > 0 ? std::max(T - decode, 0.0) : 0;
  const double decode_tokens = std::max(T - prefill_tokens, 0.0);
  const double pairs = prefill_tokens * std::max(context - static_cast<double>(a.seq.max_len) / 2, 0.0);
  return {.bytes = (prefill + decode) * context * (L + R) * static_cast<double>(dtype_bytes(a.cache.dtype)) +
                   static_cast<double>(a.kv_b.bytes()) + T * H * (NV + R) * static_cast<double>(dtype_bytes(a.q.dtype)),
          .flops = 2 * H *
                   (pairs * (NV + R) + prefill * context * L * NV + decode_tokens * (context * (2 * L + R) + L * NV))};
}

void mla(const Exec& ex, const MlaArgs& args) {
  check(args);
  // The caller's bounds as far as rows and pages go: work and scratch follow them.
  const int64_t pages = args.seq.pages.dim(1), page = args.cache.dim(1);
  const int64_t reach = pages > args.seq.max_context / page ? args.seq.max_context : pages * page;
  const MlaDesc desc{.target = target_of(ex),
                     .tokens = args.q.dim(0),
                     .heads = args.q.dim(1),
                     .nope = args.nope,
                     .rope = args.rope,
                     .value = args.value,
                     .latent = args.latent,
                     .max_len = std::min(args.seq.max_len, args.q.dim(0)),
                     .max_context = std::min(args.seq.max_context, reach),
                     .sequences = args.seq.pages.dim(0),
                     .n_prefill = args.seq.n_prefill,
                     .n_decode = args.seq.n_decode,
                     .page_tokens = args.cache.dim(1),
                     .aligned = all_aligned16(args.q, args.cache, args.out) && matrix_aligned16(args.kv_b),
                     .exact = ex.options->exact,
                     .activation = args.q.dtype,
                     .cache = args.cache.dtype,
                     .weight = args.kv_b.dtype};
  if (!ex.planning && ex.device.kind == DeviceKind::cpu)
    validate_paged(args.seq, desc.tokens, args.cache.dim(0), args.cache.dim(1), "mla");
  run_op(ex, "mla", mla_variants(), args, desc, mla_cost(args));
}

}  // namespace kdelta
