// Checks and choice of kda_decode.
#include <algorithm>
#include <cmath>

#include "kdelta/ops/common/alignment.h"
#include "kdelta/ops/kda/decode_variants.h"

namespace kdelta {

const char* kda_decode_cuda_refuse(const KdaDecodeDesc& d) {
  if (d.activation != DType::bf16) return "f32 activations";
  if (d.K != 128 || d.V != 128) return "widths other than 128";
  if (d.W != 4) return "taps other than four";
  return d.aligned ? nullptr : "rows that do not begin at 16 bytes";
}

namespace {

constexpr KdaDecodeVariant kVariants[] = {
#define KDELTA_VARIANT(name, needs, refuse) {#name, needs, refuse, nullptr, KDELTA_RUN(needs, kda_decode_##name)},
#include "kdelta/ops/kda/decode_variants.inc"
#undef KDELTA_VARIANT
};

[[noreturn]] void refuse(const std::string& what) {
  fail(ErrorCode::invalid_argument, "kda_decode: ", what);
}

void check_sequences(const Sequences& s) {
  expect_sequences(s, "kda_decode");
  if (s.n_prefill != 0) refuse(str("seq: ", s.n_prefill, " prefill rows, expected none"));
  if (s.columns() != 1) refuse(str("seq: ", s.columns(), " columns, expected 1"));
}

void check(const KdaDecodeArgs& a) {
  if (a.decay.shape.rank != 3) refuse(str("decay: shape ", to_string(a.decay.shape), ", expected [T, H, K]"));
  if (a.gate.shape.rank != 3) refuse(str("gate: shape ", to_string(a.gate.shape), ", expected [T, H, V]"));
  const int64_t T = a.decay.dim(0), H = a.decay.dim(1), K = a.decay.dim(2), V = a.gate.dim(2), C = H * (2 * K + V);
  if (H == 0 || K == 0 || V == 0) refuse(str("sizes H=", H, " K=", K, " V=", V, ", expected at least 1"));
  expect_activation(a.qkv, {T, C}, "kda_decode: qkv");
  if (a.conv_weight.shape.rank != 2 || a.conv_weight.dim(0) < 2 || a.conv_weight.dim(0) > 4)
    refuse(str("conv_weight: shape ", to_string(a.conv_weight.shape), ", expected [2..4, ", C, "]"));
  const int64_t W = a.conv_weight.dim(0);
  expect_view(a.conv_weight, {W, C}, "kda_decode: conv_weight");
  expect_activation(a.decay, {T, H, K}, "kda_decode: decay");
  expect_activation(a.beta, {T, H}, "kda_decode: beta");
  expect_view(a.a_log, {H}, "kda_decode: a_log");
  expect_view(a.dt_bias, {H, K}, "kda_decode: dt_bias");
  if (a.gate_kind == KdaGate::bounded && !(a.lower_bound >= -5.0f && a.lower_bound < 0.0f))
    refuse(str("lower_bound: ", a.lower_bound, ", expected in [-5, 0)"));
  if (!std::isfinite(a.scale)) refuse(str("scale: ", a.scale, ", expected a finite number"));
  expect_activation(a.gate, {T, H, V}, "kda_decode: gate");
  expect_view(a.norm_weight, {V}, "kda_decode: norm_weight");
  if (!(a.norm_eps >= 0)) refuse(str("norm_eps: ", a.norm_eps, ", expected >= 0"));
  check_sequences(a.seq);
  if (a.state.shape.rank != 4) refuse(str("state: shape ", to_string(a.state.shape), ", expected [slots, H, V, K]"));
  expect_dtype(a.state.dtype, {DType::f32, DType::bf16}, "kda_decode: state");
  expect_view(a.state, {a.state.dim(0), H, V, K}, "kda_decode: state");
  if (a.state.stride[2] != K || a.state.stride[1] != V * K)
    refuse(str("state: head and value strides ", a.state.stride[1], " and ", a.state.stride[2], ", expected dense ",
               V * K, " and ", K));
  if (a.window.shape.rank != 3 || a.window.dim(1) < W - 1)
    refuse(str("window: shape ", to_string(a.window.shape), ", expected [slots, ", W - 1, " or more, ", C, "]"));
  expect_activation(a.window, {a.window.dim(0), a.window.dim(1), C}, "kda_decode: window");
  expect_dtype(a.window.dtype, {a.qkv.dtype}, "kda_decode: window");
  if (a.window.stride[1] != C)
    refuse(str("window: stride ", a.window.stride[1], " between rows of a slot, expected ", C));
  expect_activation(a.out, {T, H, V}, "kda_decode: out");
  expect_dtype(a.out.dtype, {a.qkv.dtype}, "kda_decode: out");
}

KdaDecodeDesc describe(const Exec& ex, const KdaDecodeArgs& a) {
  return {.target = target_of(ex),
          .T = a.qkv.dim(0),
          .N = a.seq.count(),
          .H = a.decay.dim(1),
          .K = a.decay.dim(2),
          .V = a.gate.dim(2),
          .W = a.conv_weight.dim(0),
          .activation = a.qkv.dtype,
          .aligned =
              all_aligned16(a.qkv, a.conv_weight, a.decay, a.dt_bias, a.gate, a.norm_weight, a.state, a.window, a.out)};
}

}  // namespace

std::span<const KdaDecodeVariant> kda_decode_variants() {
  return kVariants;
}

// As of the three ops, less what they hand to each other.
Cost kda_decode_cost(const KdaDecodeArgs& a) {
  const double T = static_cast<double>(a.qkv.dim(0)), C = static_cast<double>(a.qkv.dim(1)), N = a.seq.n_decode;
  const double H = static_cast<double>(a.decay.dim(1)), K = static_cast<double>(a.decay.dim(2)),
               V = static_cast<double>(a.gate.dim(2)), W = static_cast<double>(a.conv_weight.dim(0));
  const auto bytes = [](const auto& x) { return static_cast<double>(dtype_bytes(x.dtype)); };
  const double token =
      C * bytes(a.qkv) + H * (K * bytes(a.decay) + bytes(a.beta) + V * bytes(a.gate) + V * bytes(a.out));
  const double kept = H * V * K * bytes(a.state) + (W - 1) * C * bytes(a.window);
  return {.bytes = T * token + 2 * N * kept + 4 * (W * C + H * (K + 1) + V), .flops = T * (2 * W * C + 7 * H * K * V)};
}

bool kda_decode_fuses(const Exec& ex, const KdaDecodeArgs& a) {
  check(a);
  if (ex.options->force.contains("kda_decode")) return true;
  for (const char* part : {"short_conv", "kda", "gated_norm"})
    if (ex.options->force.contains(part)) return false;
  const KdaDecodeDesc d = describe(ex, a);
  for (const KdaDecodeVariant& row : kVariants)
    if (std::string_view(row.name) != "reference" && refusal(row, d) == nullptr) return true;
  return false;
}

void kda_decode(const Exec& ex, const KdaDecodeArgs& a) {
  check(a);
  if (!ex.planning && ex.device.kind == DeviceKind::cpu)
    validate_sequences(a.seq, a.qkv.dim(0), std::min(a.state.dim(0), a.window.dim(0)), "kda_decode",
                       SlotColumns::first);
  run_op(ex, "kda_decode", kda_decode_variants(), a, describe(ex, a), kda_decode_cost(a));
}

}  // namespace kdelta
