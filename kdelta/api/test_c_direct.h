// The calls of kdelta/api/test_c_calls.h made of the ops themselves, on the same memory: what the C interface must
// equal.
#pragma once

#include <gtest/gtest.h>

#include "kdelta/api/test_c_calls.h"
#include "kdelta/ops/activation/activation.h"
#include "kdelta/ops/attn_res/attn_res.h"
#include "kdelta/ops/dequant_situ/dequant_situ.h"
#include "kdelta/ops/gated_norm/gated_norm.h"
#include "kdelta/ops/kda/kda.h"
#include "kdelta/ops/mla/mla.h"
#include "kdelta/ops/mx_quant/mx_quant.h"
#include "kdelta/ops/short_conv/short_conv.h"

namespace kdelta::test {

// A tensor argument as the ops take it, read off without the code under test. Null for an argument that is not there.
inline AnyView view(Call& c, const std::string& name) {
  for (auto& a : c.arguments) {
    if (a->name != name) continue;
    Shape shape;
    Strides stride{};
    shape.rank = a->view.ndim;
    for (size_t i = 0; i < a->shape.size(); ++i) shape.dim[i] = a->shape[i];
    stride = dense_strides(shape);
    for (size_t i = 0; i < a->strides.size(); ++i) stride[i] = a->strides[i];
    const DLDataType d = a->view.dtype;
    const DType dtype = d.code == kDLBfloat  ? DType::bf16
                        : d.code == kDLFloat ? DType::f32
                        : d.code == kDLUInt  ? DType::u8
                        : d.bits == 8        ? DType::i8
                        : d.bits == 32       ? DType::i32
                                             : DType::i64;
    return AnyView(a->view.data, dtype, shape, stride);
  }
  return {};
}
template <class T>
View<T> typed(Call& c, const std::string& name) {
  const AnyView v = view(c, name);
  return v.null() ? View<T>{} : View<T>(static_cast<T*>(v.data), v.shape, v.stride);
}
template <class Args>
const Args& args_of(const Call& c) {
  return *static_cast<const Args*>(c.args.get());
}

inline Sequences sequences(Call& c, const kdelta_sequences& s) {
  return {.cu = typed<int32_t>(c, "cu"),
          .slot = typed<int32_t>(c, "slot"),
          .accepted = typed<int32_t>(c, "accepted"),
          .fresh = typed<uint8_t>(c, "fresh"),
          .snapshot = typed<int32_t>(c, "snapshot"),
          .n_prefill = s.n_prefill,
          .n_decode = s.n_decode,
          .max_len = s.max_len};
}
inline PagedSequences pages(Call& c, const kdelta_paged_sequences& s) {
  return {.cu = typed<int32_t>(c, "cu"),
          .context = typed<int32_t>(c, "context"),
          .pages = typed<int32_t>(c, "pages"),
          .n_prefill = s.n_prefill,
          .n_decode = s.n_decode,
          .max_len = s.max_len,
          .max_context = s.max_context};
}
inline DType format_of(int32_t format) {
  return format == KDELTA_FORMAT_F8_E4M3   ? DType::f8_e4m3
         : format == KDELTA_FORMAT_F8_E5M2 ? DType::f8_e5m2
                                           : DType::f4_e2m1;
}

// What a layer does where nothing fuses its step: three ops with memory between them.
inline void run_decode(const Exec& ex, Call& c) {
  const auto& a = args_of<kdelta_kda_decode_args>(c);
  const AnyView decay = view(c, "decay"), gate = view(c, "gate"), out = view(c, "out"), qkv = view(c, "qkv");
  const int64_t T = decay.dim(0), H = decay.dim(1), K = decay.dim(2), V = gate.dim(2), P = H * K;
  std::vector<bf16> mixed_memory(static_cast<size_t>(T * qkv.dim(1))), core_memory(static_cast<size_t>(T * H * V));
  const AnyView mixed(mixed_memory.data(), DType::bf16, {T, qkv.dim(1)}),
      core(core_memory.data(), DType::bf16, {T, H, V});
  Sequences s = sequences(c, a.seq);
  short_conv(ex,
             {.x = qkv, .weight = typed<float>(c, "conv_weight"), .seq = s, .state = view(c, "window"), .out = mixed});
  kda(ex, {.q = mixed.columns(0, P).split_last(H, K),
           .k = mixed.columns(P, P).split_last(H, K),
           .v = mixed.columns(2 * P, H * V).split_last(H, V),
           .gate = decay,
           .beta = view(c, "beta"),
           .a_log = typed<float>(c, "a_log"),
           .dt_bias = typed<float>(c, "dt_bias"),
           .scale = a.scale,
           .seq = s,
           .state = view(c, "state"),
           .out = core});
  gated_norm(ex, {.x = core, .gate = gate, .weight = typed<float>(c, "norm_weight"), .eps = a.norm_eps, .out = out});
  for (int64_t i = 2 * H * V; i < T * H * V; ++i) c.at("out").as<bf16>()[i] = {};  // rows of nobody; the norm leaves -0
}

// The op itself, on the call's memory.
inline void run_op(const Exec& ex, Call& c) {
  const std::string op = c.op;
  if (op == "kda") {
    const auto& a = args_of<kdelta_kda_args>(c);
    kda(ex, {.q = view(c, "q"),
             .k = view(c, "k"),
             .v = view(c, "v"),
             .gate = view(c, "gate"),
             .beta = view(c, "beta"),
             .a_log = typed<float>(c, "a_log"),
             .dt_bias = typed<float>(c, "dt_bias"),
             .gate_kind = a.gate_kind == KDELTA_GATE_BOUNDED ? KdaGate::bounded : KdaGate::softplus,
             .lower_bound = a.lower_bound,
             .beta_kind = a.beta_kind == KDELTA_BETA_RAW ? KdaBeta::raw : KdaBeta::preprocessed,
             .norm_kind = a.norm_kind == KDELTA_NORM_L2 ? KdaNorm::l2 : KdaNorm::none,
             .scale = a.scale,
             .seq = sequences(c, a.seq),
             .state = view(c, "state"),
             .records = typed<float>(c, "records"),
             .out = view(c, "out")});
  } else if (op == "kda_replay") {
    kda_replay(ex, {.state = view(c, "state"),
                    .records = typed<float>(c, "records"),
                    .slot = typed<int32_t>(c, "slot"),
                    .accepted = typed<int32_t>(c, "accepted")});
  } else if (op == "kda_decode") {
    run_decode(ex, c);
  } else if (op == "short_conv") {
    const auto& a = args_of<kdelta_short_conv_args>(c);
    short_conv(ex, {.x = view(c, "x"),
                    .weight = typed<float>(c, "weight"),
                    .activation = a.silu != 0 ? ConvActivation::silu : ConvActivation::none,
                    .seq = sequences(c, a.seq),
                    .state = view(c, "state"),
                    .out = view(c, "out"),
                    .split = {view(c, "split[0]"), view(c, "split[1]"), view(c, "split[2]")}});
  } else if (op == "gated_norm") {
    const auto& a = args_of<kdelta_gated_norm_args>(c);
    gated_norm(ex, {.x = view(c, "x"),
                    .gate = view(c, "gate"),
                    .weight = typed<float>(c, "weight"),
                    .bias = typed<float>(c, "bias"),
                    .residual = view(c, "residual"),
                    .sum_out = view(c, "sum_out"),
                    .activation = a.silu != 0 ? GateActivation::silu : GateActivation::sigmoid,
                    .eps = a.eps,
                    .live = typed<int32_t>(c, "live"),
                    .out = view(c, "out")});
  } else if (op == "attn_res") {
    const auto& a = args_of<kdelta_attn_res_args>(c);
    attn_res(ex, {.blocks = view(c, "blocks"),
                  .n = a.n,
                  .sum = view(c, "sum"),
                  .addend = view(c, "addend"),
                  .sum_out = view(c, "sum_out"),
                  .score_weight = typed<float>(c, "score_weight"),
                  .eps = a.eps,
                  .norm_weight = typed<float>(c, "norm_weight"),
                  .norm_eps = a.norm_eps,
                  .out = view(c, "out")});
  } else if (op == "activation") {
    activation(ex, {.kind = ActivationKind::situ,
                    .beta = 4,
                    .linear_beta = 25,
                    .gate = view(c, "gate"),
                    .up = view(c, "up"),
                    .out = view(c, "out")});
  } else if (op == "mx_quantize") {
    const auto& a = args_of<kdelta_mx_quantize_args>(c);
    mx_quantize(ex, {.format = format_of(a.format),
                     .rule = MxScaleRule::floor,
                     .x = view(c, "x"),
                     .codes = typed<uint8_t>(c, "codes"),
                     .scale = typed<uint8_t>(c, "scale"),
                     .situ = a.situ != 0,
                     .group_counts = typed<int64_t>(c, "group_counts")});
  } else if (op == "mx_dequantize") {
    mx_dequantize(ex, {.format = format_of(args_of<kdelta_mx_dequantize_args>(c).format),
                       .codes = typed<uint8_t>(c, "codes"),
                       .scale = typed<uint8_t>(c, "scale"),
                       .out = view(c, "out")});
  } else if (op == "dequant_situ") {
    dequant_situ(ex, {.x = view(c, "x"),
                      .weight_scale = typed<float>(c, "weight_scale"),
                      .activation_scale = typed<float>(c, "activation_scale"),
                      .bias = typed<float>(c, "bias"),
                      .group_counts = typed<int64_t>(c, "group_counts"),
                      .y = typed<int8_t>(c, "y"),
                      .scale = typed<float>(c, "scale")});
  } else if (op == "mla_append") {
    mla_append(ex, {.latent = view(c, "latent"),
                    .rope = view(c, "rope"),
                    .seq = pages(c, args_of<kdelta_mla_append_args>(c).seq),
                    .cache = view(c, "cache")});
  } else {
    ASSERT_EQ(op, "mla");
    const auto& a = args_of<kdelta_mla_args>(c);
    const AnyView w = view(c, "kv_b");
    Matrix kv_b = dense_matrix(w.data, w.dtype, w.dim(0), a.latent);
    if (a.kv_b_format != KDELTA_FORMAT_PLAIN)
      kv_b = dense_matrix(w.data, format_of(a.kv_b_format), w.dim(0), a.latent, typed<uint8_t>(c, "kv_b_scale").data);
    else
      kv_b.row_bytes = w.stride[0] * 2;
    mla(ex, {.q = view(c, "q"),
             .cache = view(c, "cache"),
             .kv_b = kv_b,
             .seq = pages(c, a.seq),
             .nope = a.nope,
             .rope = a.rope,
             .value = a.value,
             .latent = a.latent,
             .scale = a.scale,
             .out = view(c, "out")});
  }
}

}  // namespace kdelta::test
