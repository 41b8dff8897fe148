// mla_append: copies this step's latents to their pages. A copy has one implementation; its definition is test.cc.
#include <cstring>

#include "kdelta/ops/common/cpu/parallel.h"
#include "kdelta/ops/mla/paged.h"
#include "kdelta/ops/mla/variants.h"

namespace kdelta {
namespace {

void append_token(const MlaAppendArgs& a, int64_t n, int64_t t) {
  const auto bytes = static_cast<size_t>(dtype_bytes(a.cache.dtype));
  const int64_t L = a.latent.dim(1), R = a.rope.dim(1);
  const int64_t position = a.seq.context.data[n] + t - a.seq.cu.data[n];
  const auto width = (L + R) * static_cast<int64_t>(bytes);
  char* row = cache_row(static_cast<char*>(a.cache.data), a.seq, a.cache.dim(1), width, n, position);
  std::memcpy(row, static_cast<const char*>(a.latent.data) + t * a.latent.stride[0] * static_cast<int64_t>(bytes),
              static_cast<size_t>(L) * bytes);
  if (R > 0)
    std::memcpy(row + L * static_cast<int64_t>(bytes),
                static_cast<const char*>(a.rope.data) + t * a.rope.stride[0] * static_cast<int64_t>(bytes),
                static_cast<size_t>(R) * bytes);
}

void append_copy(const Exec& ex, const MlaAppendArgs& a, const MlaAppendDesc&, void*) {
  const int64_t live = a.seq.n_prefill + a.seq.n_decode;
  const int32_t* cu = a.seq.cu.data;
  parallel_for(ex, cu[live], 64, [&](int64_t begin, int64_t end) {
    int64_t n = 0;
    for (int64_t t = begin; t < end; ++t) {
      while (cu[n + 1] <= t) ++n;
      append_token(a, n, t);
    }
  });
}

constexpr MlaAppendVariant kAppendVariants[] = {
    {"copy", IsaLevel::portable, nullptr, nullptr, append_copy},
    {"reference", IsaLevel::portable, nullptr, nullptr, append_copy},
    {"cuda", CudaLevel::sm80, nullptr, nullptr, KDELTA_RUN(CudaLevel::sm80, mla_append_cuda)},
};

void check(const MlaAppendArgs& a) {
  if (a.latent.shape.rank != 2 || a.rope.shape.rank != 2)
    fail(ErrorCode::invalid_argument, "mla_append: latent and rope: shapes ", to_string(a.latent.shape), " and ",
         to_string(a.rope.shape), ", expected [T, L] and [T, R]");
  const int64_t T = a.latent.dim(0), L = a.latent.dim(1), R = a.rope.dim(1);
  expect_activation(a.latent, {T, L}, "mla_append: latent");
  expect_activation(a.rope, {T, R}, "mla_append: rope");
  if (a.cache.shape.rank != 3 || a.cache.dim(1) < 1)
    fail(ErrorCode::invalid_argument, "mla_append: cache: shape ", to_string(a.cache.shape),
         ", expected [page count, G, L+R]");
  expect_activation(a.cache, {a.cache.dim(0), a.cache.dim(1), L + R}, "mla_append: cache");
  if (a.cache.stride != dense_strides(a.cache.shape))
    fail(ErrorCode::invalid_argument, "mla_append: cache: expected dense strides");
  if (a.latent.dtype != a.cache.dtype || a.rope.dtype != a.cache.dtype)
    fail(ErrorCode::invalid_argument, "mla_append: dtypes of latent, rope and cache: ", dtype_name(a.latent.dtype),
         ", ", dtype_name(a.rope.dtype), ", ", dtype_name(a.cache.dtype), ", expected one");
  expect_paged(a.seq, "mla_append");
}

}  // namespace

std::span<const MlaAppendVariant> mla_append_variants() {
  return kAppendVariants;
}

void mla_append(const Exec& ex, const MlaAppendArgs& args) {
  check(args);
  const int64_t T = args.latent.dim(0);
  if (!ex.planning && ex.device.kind == DeviceKind::cpu)
    validate_paged(args.seq, T, args.cache.dim(0), args.cache.dim(1), "mla_append");
  const double bytes = 2.0 * static_cast<double>(T * args.cache.dim(2) * dtype_bytes(args.cache.dtype));
  run_op(ex, "mla_append", mla_append_variants(), args, {target_of(ex), T}, Cost{.bytes = bytes});
}

}  // namespace kdelta
