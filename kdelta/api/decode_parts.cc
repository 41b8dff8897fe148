#include "kdelta/api/decode_parts.h"

#include <algorithm>
#include <cstring>

#include "kdelta/ops/gated_norm/gated_norm.h"
#include "kdelta/ops/short_conv/short_conv.h"

namespace kdelta::c {
namespace {

void zero_rows(const AnyView& out, int64_t begin, int64_t end) {
  const auto bytes = static_cast<size_t>(out.dim(2) * dtype_bytes(out.dtype));
  for (int64_t t = begin; t < end; ++t)
    for (int64_t h = 0; h < out.dim(1); ++h)
      std::memset(static_cast<std::byte*>(out.data) + (t * out.stride[0] + h * out.stride[1]) * dtype_bytes(out.dtype),
                  0, bytes);
}

}  // namespace

void decode_parts(const Exec& ex, const KdaDecodeArgs& a) {
  const int64_t T = a.qkv.dim(0), H = a.decay.dim(1), K = a.decay.dim(2), V = a.gate.dim(2), keys = H * K;
  Sequences seq = a.seq;
  seq.snapshot = {};
  if (!ex.planning)
    validate_sequences(seq, T, std::min(a.state.dim(0), a.window.dim(0)), "kda_decode", SlotColumns::first);
  const AnyView mixed = ex.scratch->take(a.qkv.dtype, {T, 2 * keys + H * V});
  const AnyView core = ex.scratch->take(a.qkv.dtype, {T, H * V}).split_last(H, V);
  short_conv(ex, {.x = a.qkv, .weight = a.conv_weight, .seq = seq, .state = a.window, .out = mixed});
  kda(ex, {.q = mixed.columns(0, keys).split_last(H, K),
           .k = mixed.columns(keys, keys).split_last(H, K),
           .v = mixed.columns(2 * keys, H * V).split_last(H, V),
           .gate = a.decay,
           .beta = a.beta,
           .a_log = a.a_log,
           .dt_bias = a.dt_bias,
           .gate_kind = a.gate_kind,
           .lower_bound = a.lower_bound,
           .beta_kind = a.beta_kind,
           .norm_kind = a.norm_kind,
           .scale = a.scale,
           .seq = seq,
           .state = a.state,
           .out = core});
  gated_norm(ex, {.x = core, .gate = a.gate, .weight = a.norm_weight, .eps = a.norm_eps, .out = a.out});
  if (ex.planning) return;
  // The norm of zeros is zero but for a gate of NaN, and rows of nobody may hold anything.
  for (int64_t n = 0; n < seq.count(); ++n)
    if (*seq.slot.at(n, 0) == -1) zero_rows(a.out, seq.cu.data[n], seq.cu.data[n + 1]);
  zero_rows(a.out, seq.cu.data[seq.count()], T);
}

}  // namespace kdelta::c
