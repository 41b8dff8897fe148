#include "kdelta/ops/kda/kda.h"

#include <algorithm>
#include <cmath>

#include "kdelta/ops/common/alignment.h"
#include "kdelta/ops/kda/variants.h"

namespace kdelta {
namespace {

constexpr KdaVariant kVariants[] = {
#define KDELTA_VARIANT(name, needs, refuse, scratch) {#name, needs, refuse, scratch, KDELTA_RUN(needs, kda_##name)},
#include "kdelta/ops/kda/variants.inc"
#undef KDELTA_VARIANT
};

[[noreturn]] void refuse(const std::string& what) {
  fail(ErrorCode::invalid_argument, "kda: ", what);
}

void check_state(const KdaArgs& a, int64_t H, int64_t V, int64_t K) {
  if (a.state.shape.rank != 4) refuse(str("state: shape ", to_string(a.state.shape), ", expected [slots, H, V, K]"));
  expect_dtype(a.state.dtype, {DType::f32, DType::bf16}, "kda: state");
  expect_view(a.state, {a.state.dim(0), H, V, K}, "kda: state");
  if (a.state.stride[2] != K || a.state.stride[1] != V * K)
    refuse(str("state: head and value strides ", a.state.stride[1], " and ", a.state.stride[2], ", expected dense ",
               V * K, " and ", K));
  if (a.state.dim(0) > 1 && a.state.stride[0] < H * V * K)
    refuse(str("state: slot stride ", a.state.stride[0], ", expected at least ", H * V * K));
}

void check_records(const KdaArgs& a, int64_t H, int64_t K, int64_t V) {
  const int64_t columns = a.seq.columns(), width = 2 * K + V;
  expect_view(a.records, {a.state.dim(0), columns - 1, H, width}, "kda: records");
  if (a.records.stride[2] != width || a.records.stride[1] != H * width)
    refuse(str("records: record and head strides ", a.records.stride[1], " and ", a.records.stride[2],
               ", expected dense ", H * width, " and ", width));
}

void check(const KdaArgs& a) {
  if (a.q.shape.rank != 3) refuse(str("q: shape ", to_string(a.q.shape), ", expected [T, H, K]"));
  if (a.v.shape.rank != 3) refuse(str("v: shape ", to_string(a.v.shape), ", expected [T, H, V]"));
  const int64_t T = a.q.dim(0), H = a.q.dim(1), K = a.q.dim(2), V = a.v.dim(2);
  if (H == 0 || K == 0 || V == 0) refuse(str("sizes H=", H, " K=", K, " V=", V, ", expected at least 1"));
  expect_activation(a.q, {T, H, K}, "kda: q");
  expect_activation(a.k, {T, H, K}, "kda: k");
  expect_activation(a.v, {T, H, V}, "kda: v");  // also refuses more value heads than key heads
  expect_dtype(a.k.dtype, {a.q.dtype}, "kda: k");
  expect_dtype(a.v.dtype, {a.q.dtype}, "kda: v");
  expect_activation(a.gate, {T, H, K}, "kda: gate");
  expect_activation(a.beta, {T, H}, "kda: beta");
  expect_view(a.a_log, {H}, "kda: a_log");
  expect_view(a.dt_bias, {H, K}, "kda: dt_bias");
  expect_activation(a.out, {T, H, V}, "kda: out");
  expect_dtype(a.out.dtype, {a.v.dtype}, "kda: out");
  if (a.gate_kind == KdaGate::bounded && !(a.lower_bound >= -5.0f && a.lower_bound < 0.0f))
    refuse(str("lower_bound: ", a.lower_bound, ", expected in [-5, 0)"));
  if (!std::isfinite(a.scale)) refuse(str("scale: ", a.scale, ", expected a finite number"));
  check_state(a, H, V, K);
  expect_sequences(a.seq, "kda");
  if (!a.records.null()) check_records(a, H, K, V);
}

}  // namespace

std::span<const KdaVariant> kda_variants() {
  return kVariants;
}

// Every operand once, every state that is read or written, and what drafts leave behind: a state or a record each.
// Lengths and `accepted` may be a device's: where prefill shares the call nobody here knows how many tokens are drafts,
// and they count as none; records that are replayed never count.
Cost kda_cost(const KdaArgs& a) {
  const double T = static_cast<double>(a.q.dim(0)), H = static_cast<double>(a.q.dim(1));
  const double K = static_cast<double>(a.q.dim(2)), V = static_cast<double>(a.v.dim(2));
  const double live = a.seq.n_prefill + a.seq.n_decode, rows = static_cast<double>(a.seq.count()),
               most = a.seq.n_decode * static_cast<double>(a.seq.columns() - 1);
  const double drafts = a.seq.n_prefill > 0 ? 0 : std::clamp(T - rows, 0.0, most);
  const double activation = static_cast<double>(dtype_bytes(a.q.dtype)),
               gate = static_cast<double>(dtype_bytes(a.gate.dtype));
  const double per_token = (2 * K + 2 * V) * activation + K * gate + static_cast<double>(dtype_bytes(a.beta.dtype));
  const double state = H * K * V * static_cast<double>(dtype_bytes(a.state.dtype)),
               draft = a.records.null() ? state : H * (2 * K + V) * 4;
  return {.bytes = T * H * per_token + 2 * live * state + drafts * draft + 4 * H * (K + 1), .flops = 7 * T * H * K * V};
}

namespace {

// Whether 16-byte accesses fit every operand, with offsets of 64 rows in 32 bits.
bool is_aligned(const KdaArgs& a) {
  const AnyConstView operands[] = {a.q, a.k, a.v, a.gate, a.out};
  bool fits = all_aligned16(a.state, a.records, a.dt_bias);
  for (const AnyConstView& x : operands) fits = fits && aligned16(x) && x.stride[0] < (int64_t{1} << 22);
  return fits;
}

}  // namespace

void kda(const Exec& ex, const KdaArgs& a) {
  check(a);
  const bool records = !a.records.null();
  // On a CUDA device the contents are not the host's to read: kernels skip faulty rows and raise Exec::faults.
  if (!ex.planning && ex.device.kind == DeviceKind::cpu)
    validate_sequences(a.seq, a.q.dim(0), a.state.dim(0), "kda", records ? SlotColumns::first : SlotColumns::all);
  const KdaDesc desc{.target = target_of(ex),
                     .T = a.q.dim(0),
                     .N = a.seq.count(),
                     .H = a.q.dim(1),
                     .K = a.q.dim(2),
                     .V = a.v.dim(2),
                     .activation = a.q.dtype,
                     .records = records ? a.seq.columns() - 1 : 0,
                     .n_prefill = a.seq.n_prefill,
                     .snapshots = a.seq.snapshot.null() ? 0 : a.seq.snapshot.dim(0),
                     .longest = a.seq.max_len,
                     .exact = ex.options->exact,
                     .aligned = is_aligned(a)};
  run_op(ex, "kda", kda_variants(), a, desc, kda_cost(a));
}

}  // namespace kdelta
