// Every operator of the C interface: arguments become the op's own, in the order in which its header lists them.
#include "kdelta/api/c_ops.h"

#include <unistd.h>

#include <optional>

#include "kdelta/api/c_context.h"
#include "kdelta/api/c_status.h"
#include "kdelta/api/c_tensor.h"
#include "kdelta/api/decode_parts.h"
#include "kdelta/core/check.h"
#include "kdelta/core/current_device.h"
#include "kdelta/ops/activation/activation.h"
#include "kdelta/ops/attn_res/attn_res.h"
#include "kdelta/ops/dequant_situ/dequant_situ.h"
#include "kdelta/ops/gated_norm/gated_norm.h"
#include "kdelta/ops/kda/kda.h"
#include "kdelta/ops/mla/mla.h"
#include "kdelta/ops/mx_quant/mx_quant.h"
#include "kdelta/ops/short_conv/short_conv.h"

namespace kdelta::c {
namespace {

Sequences read(Arguments& in, const kdelta_sequences& s) {
  return {.cu = in.in<int32_t>(s.cu, "cu"),
          .slot = in.in<int32_t>(s.slot, "slot"),
          .accepted = in.in<int32_t>(s.accepted, "accepted"),
          .fresh = in.in<uint8_t>(s.fresh, "fresh"),
          .snapshot = in.in_if<int32_t>(s.snapshot, "snapshot"),
          .n_prefill = s.n_prefill,
          .n_decode = s.n_decode,
          .max_len = s.max_len};
}

PagedSequences read(Arguments& in, const kdelta_paged_sequences& s) {
  return {.cu = in.in<int32_t>(s.cu, "cu"),
          .context = in.in<int32_t>(s.context, "context"),
          .pages = in.in<int32_t>(s.pages, "pages"),
          .n_prefill = s.n_prefill,
          .n_decode = s.n_decode,
          .max_len = s.max_len,
          .max_context = s.max_context};
}

void call(const Exec& ex, Arguments& in, const kdelta_kda_args& a) {
  const KdaArgs args{.q = in.in(a.q, "q"),
                     .k = in.in(a.k, "k"),
                     .v = in.in(a.v, "v"),
                     .gate = in.in(a.gate, "gate"),
                     .beta = in.in(a.beta, "beta"),
                     .a_log = in.in<float>(a.a_log, "a_log"),
                     .dt_bias = in.in<float>(a.dt_bias, "dt_bias"),
                     .gate_kind = in.choice<KdaGate>(a.gate_kind, 2, "gate_kind"),
                     .lower_bound = a.lower_bound,
                     .beta_kind = in.choice<KdaBeta>(a.beta_kind, 2, "beta_kind"),
                     .norm_kind = in.choice<KdaNorm>(a.norm_kind, 2, "norm_kind"),
                     .scale = a.scale,
                     .seq = read(in, a.seq),
                     .state = in.out(a.state, "state"),
                     .records = in.out_if<float>(a.records, "records"),
                     .out = in.out(a.out, "out")};
  in.expect_apart();
  kda(ex, args);
}

void call(const Exec& ex, Arguments& in, const kdelta_kda_replay_args& a) {
  const KdaReplayArgs args{.state = in.out(a.state, "state"),
                           .records = in.out<float>(a.records, "records"),
                           .slot = in.in<int32_t>(a.slot, "slot"),
                           .accepted = in.in<int32_t>(a.accepted, "accepted")};
  in.expect_apart();
  kda_replay(ex, args);
}

void call(const Exec& ex, Arguments& in, const kdelta_kda_decode_args& a) {
  const KdaDecodeArgs args{.qkv = in.in(a.qkv, "qkv"),
                           .conv_weight = in.in<float>(a.conv_weight, "conv_weight"),
                           .decay = in.in(a.decay, "decay"),
                           .beta = in.in(a.beta, "beta"),
                           .a_log = in.in<float>(a.a_log, "a_log"),
                           .dt_bias = in.in<float>(a.dt_bias, "dt_bias"),
                           .gate_kind = in.choice<KdaGate>(a.gate_kind, 2, "gate_kind"),
                           .lower_bound = a.lower_bound,
                           .beta_kind = in.choice<KdaBeta>(a.beta_kind, 2, "beta_kind"),
                           .norm_kind = in.choice<KdaNorm>(a.norm_kind, 2, "norm_kind"),
                           .scale = a.scale,
                           .gate = in.in(a.gate, "gate"),
                           .norm_weight = in.in<float>(a.norm_weight, "norm_weight"),
                           .norm_eps = a.norm_eps,
                           .seq = read(in, a.seq),
                           .state = in.out(a.state, "state"),
                           .window = in.out(a.window, "window"),
                           .out = in.out(a.out, "out")};
  in.expect_apart();
  // The host cannot see a CUDA device's rows of nobody, so that one has a kernel or refuses.
  const bool whole = kda_decode_fuses(ex, args) || ex.device.kind != DeviceKind::cpu;
  whole ? kda_decode(ex, args) : decode_parts(ex, args);
}

void call(const Exec& ex, Arguments& in, const kdelta_short_conv_args& a) {
  const ShortConvArgs args{.x = in.in(a.x, "x"),
                           .weight = in.in<float>(a.weight, "weight"),
                           .activation = a.silu != 0 ? ConvActivation::silu : ConvActivation::none,
                           .seq = read(in, a.seq),
                           .state = in.out(a.state, "state"),
                           .out = in.out_if(a.out, "out"),
                           .split = {in.out_if(a.split[0], "split[0]"), in.out_if(a.split[1], "split[1]"),
                                     in.out_if(a.split[2], "split[2]")}};
  in.expect_apart();
  short_conv(ex, args);
}

void call(const Exec& ex, Arguments& in, const kdelta_gated_norm_args& a) {
  const GatedNormArgs args{.x = in.in(a.x, "x"),
                           .gate = in.in(a.gate, "gate"),
                           .weight = in.in_if<float>(a.weight, "weight"),
                           .bias = in.in_if<float>(a.bias, "bias"),
                           .residual = in.in_if(a.residual, "residual"),
                           .sum_out = in.out_if(a.sum_out, "sum_out"),
                           .activation = a.silu != 0 ? GateActivation::silu : GateActivation::sigmoid,
                           .eps = a.eps,
                           .live = in.in_if<int32_t>(a.live, "live"),
                           .out = in.out(a.out, "out")};
  in.expect_apart(true);
  gated_norm(ex, args);
}

void call(const Exec& ex, Arguments& in, const kdelta_attn_res_args& a) {
  const AttnResArgs args{.blocks = in.in_if(a.blocks, "blocks"),
                         .n = a.n,
                         .sum = in.in(a.sum, "sum"),
                         .addend = in.in_if(a.addend, "addend"),
                         .sum_out = in.out_if(a.sum_out, "sum_out"),
                         .score_weight = in.in<float>(a.score_weight, "score_weight"),
                         .eps = a.eps,
                         .norm_weight = in.in_if<float>(a.norm_weight, "norm_weight"),
                         .norm_eps = a.norm_eps,
                         .out = in.out(a.out, "out")};
  in.expect_apart();
  attn_res(ex, args);
}

void call(const Exec& ex, Arguments& in, const kdelta_activation_args& a) {
  const ActivationArgs args{.kind = in.choice<ActivationKind>(a.kind, 3, "kind"),
                            .beta = a.beta,
                            .linear_beta = a.linear_beta,
                            .gate = in.in(a.gate, "gate"),
                            .up = in.in(a.up, "up"),
                            .out = in.out(a.out, "out")};
  in.expect_apart(true);
  activation(ex, args);
}

void call(const Exec& ex, Arguments& in, const kdelta_mx_quantize_args& a) {
  const MxQuantizeArgs args{.format = in.mx_format(a.format, "format"),
                            .rule = in.choice<MxScaleRule>(a.rule, 3, "rule"),
                            .x = in.in(a.x, "x"),
                            .codes = in.out<uint8_t>(a.codes, "codes"),
                            .scale = in.out<uint8_t>(a.scale, "scale"),
                            .situ = a.situ != 0,
                            .beta = a.beta,
                            .linear_beta = a.linear_beta,
                            .activate_left = a.activate_left != 0,
                            .group_counts = in.in_if<int64_t>(a.group_counts, "group_counts")};
  in.expect_apart();
  mx_quantize(ex, args);
}

void call(const Exec& ex, Arguments& in, const kdelta_mx_dequantize_args& a) {
  const MxDequantizeArgs args{.format = in.mx_format(a.format, "format"),
                              .codes = in.in<uint8_t>(a.codes, "codes"),
                              .scale = in.in<uint8_t>(a.scale, "scale"),
                              .out = in.out(a.out, "out")};
  in.expect_apart();
  mx_dequantize(ex, args);
}

void call(const Exec& ex, Arguments& in, const kdelta_dequant_situ_args& a) {
  const DequantSituArgs args{.x = in.in(a.x, "x"),
                             .beta = a.beta,
                             .linear_beta = a.linear_beta,
                             .activate_left = a.activate_left != 0,
                             .weight_scale = in.in_if<float>(a.weight_scale, "weight_scale"),
                             .activation_scale = in.in_if<float>(a.activation_scale, "activation_scale"),
                             .bias = in.in_if<float>(a.bias, "bias"),
                             .dynamic = a.dynamic != 0,
                             .quant_scale = in.in_if<float>(a.quant_scale, "quant_scale"),
                             .quant_offset = in.in_if<float>(a.quant_offset, "quant_offset"),
                             .group_counts = in.in_if<int64_t>(a.group_counts, "group_counts"),
                             .y = in.out<int8_t>(a.y, "y"),
                             .scale = in.out_if<float>(a.scale, "scale")};
  in.expect_apart();
  dequant_situ(ex, args);
}

void call(const Exec& ex, Arguments& in, const kdelta_mla_append_args& a) {
  const MlaAppendArgs args{.latent = in.in(a.latent, "latent"),
                           .rope = in.in(a.rope, "rope"),
                           .seq = read(in, a.seq),
                           .cache = in.out(a.cache, "cache")};
  in.expect_apart();
  mla_append(ex, args);
}

void call(const Exec& ex, Arguments& in, const kdelta_mla_args& a) {
  const MlaArgs args{.q = in.in(a.q, "q"),
                     .cache = in.in(a.cache, "cache"),
                     .kv_b = in.matrix(a.kv_b, a.kv_b_scale, a.kv_b_format, "kv_b", "kv_b_scale"),
                     .seq = read(in, a.seq),
                     .nope = a.nope,
                     .rope = a.rope,
                     .value = a.value,
                     .latent = a.latent,
                     .scale = a.scale,
                     .out = in.out(a.out, "out")};
  in.expect_apart();
  mla(ex, args);
}

template <class Args>
size_t measure(const kdelta_context& context, const char* op, const Args& args) {
  Arena arena = Arena::measuring(context.device);
  const Exec ex{.device = context.device,
                .scratch = &arena,
                .threads = context.threads.get(),
                .options = &context.options,
                .planning = true};
  Arguments in(op, context.device, true);
  call(ex, in, args);
  // Room to begin at a multiple of kAlign.
  return arena.peak() == 0 ? 0 : static_cast<size_t>(arena.peak() + Arena::kAlign - 1);
}

template <class Args>
void start(const kdelta_context& context, const char* op, const Args& args, const kdelta_launch& launch) {
  if (launch.workspace == nullptr && launch.workspace_bytes > 0)
    fail(ErrorCode::invalid_argument, op, ": workspace: null pointer of ", launch.workspace_bytes, " bytes");
  if (context.device.kind == DeviceKind::cpu && (launch.stream != nullptr || launch.faults != nullptr))
    fail(ErrorCode::invalid_argument, op, ": stream and faults: given, expected null on the CPU");
  constexpr size_t kMost = size_t{1} << 62;
  Arena arena(launch.workspace, static_cast<int64_t>(std::min(launch.workspace_bytes, kMost)));
  const KeepCurrentDevice kept(context.device);
  std::optional<Stream> stream;
  if (context.device.kind == DeviceKind::cuda) stream.emplace(context.device, launch.stream);
  const Exec ex{.device = context.device,
                .stream = stream ? &*stream : nullptr,
                .faults = launch.faults,
                .scratch = &arena,
                .threads = context.threads.get(),
                .options = &context.options};
  Arguments in(op, context.device, false);
  try {
    call(ex, in, args);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::out_of_memory) throw;
    const size_t needed = measure(context, op, args);
    if (needed <= launch.workspace_bytes) throw;
    fail(ErrorCode::invalid_argument, op, ": workspace: ", launch.workspace_bytes, " bytes, expected at least ", needed,
         " (kdelta_", op, "_workspace)");
  }
}

// A context is a process's own: its threads do not follow a fork, and its lock may have been held.
void expect_here(const kdelta_context* context, const char* op) {
  expect_given(context, op, "context");
  if (context->owner != getpid())
    fail(ErrorCode::invalid_argument, op, ": context: made by another process; after fork() make a new one");
}

template <class Args>
kdelta_status run(const char* op, kdelta_context* context, const Args* args, const kdelta_launch* launch) {
  return guarded([&] {
    expect_here(context, op);
    const kdelta_launch none;
    const Args a = read_struct(args, op);
    const kdelta_launch l = read_struct(launch == nullptr ? &none : launch, "kdelta_launch");
    const std::lock_guard lock(context->busy);
    start(*context, op, a, l);
  });
}

template <class Args>
kdelta_status run_measure(const char* op, kdelta_context* context, const Args* args, size_t* bytes) {
  return guarded([&] {
    expect_here(context, op);
    expect_given(bytes, op, "bytes");
    *bytes = measure(*context, op, read_struct(args, op));
  });
}

}  // namespace
}  // namespace kdelta::c

#define KDELTA_OPERATOR(op)                                                                                         \
  kdelta_status kdelta_##op(kdelta_context* context, const kdelta_##op##_args* args, const kdelta_launch* launch) { \
    return kdelta::c::run(#op, context, args, launch);                                                              \
  }                                                                                                                 \
  kdelta_status kdelta_##op##_workspace(kdelta_context* context, const kdelta_##op##_args* args, size_t* bytes) {   \
    return kdelta::c::run_measure(#op, context, args, bytes);                                                       \
  }

KDELTA_OPERATOR(kda)
KDELTA_OPERATOR(kda_replay)
KDELTA_OPERATOR(kda_decode)
KDELTA_OPERATOR(short_conv)
KDELTA_OPERATOR(gated_norm)
KDELTA_OPERATOR(attn_res)
KDELTA_OPERATOR(activation)
KDELTA_OPERATOR(mx_quantize)
KDELTA_OPERATOR(mx_dequantize)
KDELTA_OPERATOR(dequant_situ)
KDELTA_OPERATOR(mla_append)
KDELTA_OPERATOR(mla)
