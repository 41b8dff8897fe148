#include "kdelta/layers/kda/kda.h"

#include <cmath>

#include "kdelta/layers/over_ranks.h"
#include "kdelta/layers/project_runs.h"
#include "kdelta/ops/gated_norm/gated_norm.h"
#include "kdelta/ops/kda/decode.h"
#include "kdelta/ops/kda/kda.h"
#include "kdelta/ops/linear/linear.h"
#include "kdelta/ops/short_conv/short_conv.h"

namespace kdelta {

std::vector<WeightSpec> KdaLayer::weights() {
  const int64_t D = c_.hidden, P = c_.heads * c_.head_dim, R = c_.head_dim;
  const auto matrix = [](const char* name, Shape shape, ShardRule shard, const char* group, Matrix* target) {
    return WeightSpec{.names = {name}, .shape = shape, .shard = shard, .group = group, .target = target};
  };
  constexpr auto kWhole = ShardRule::whole, kRows = ShardRule::rows;
  std::vector<WeightSpec> w = {
      matrix("q_proj", {P, D}, kRows, "q, k and v", &q_),
      matrix("k_proj", {P, D}, kRows, "q, k and v", &k_),
      matrix("v_proj", {P, D}, kRows, "q, k and v", &v_),
      matrix("b_proj", {c_.heads, D}, kRows, "gates", &b_),
      matrix("o_proj", {D, P}, ShardRule::columns, "", &o_),
      {.names = {"q_conv1d", "k_conv1d", "v_conv1d"},
       .kind = WeightKind::conv_taps,
       .shape = {3 * P, c_.conv_width},
       .shard = kRows,
       .merged = "conv1d",
       .target = &conv_},
      {.names = {"A_log"},
       .kind = WeightKind::head_scalar,
       .shape = {c_.heads},
       .suffix = "",
       .shard = kRows,
       .target = &a_log_},
      {.names = {"dt_bias"},
       .kind = WeightKind::vector,
       .shape = {P},
       .suffix = "",
       .shard = kRows,
       .target = &dt_bias_},
      {.names = {"o_norm"}, .kind = WeightKind::vector, .shape = {c_.head_dim}, .target = &o_norm_},
  };
  switch (c_.gate_form) {
    case KdaGateForm::factored:
      w.push_back(matrix("f_a_proj", {R, D}, kWhole, "gates", &f_));
      w.push_back(matrix("f_b_proj", {P, R}, kRows, "", &f_b_));
      break;
    case KdaGateForm::composed:
      w.push_back({.names = {"f_b_proj", "f_a_proj"},
                   .kind = WeightKind::product,
                   .shape = {P, D},
                   .inner = R,
                   .shard = kRows,
                   .group = "gates",
                   .target = &f_});
      break;
  }
  if (c_.full_rank_gate) {
    w.push_back(matrix("g_proj", {P, D}, kRows, "gates", &g_));
  } else {
    w.push_back(matrix("g_a_proj", {R, D}, kWhole, "gates", &g_));
    w.push_back(matrix("g_b_proj", {P, R}, kRows, "", &g_b_));
  }
  return w;
}

std::vector<StateSpec> KdaLayer::states(const StateParams& params) const {
  const int64_t window = c_.conv_width - 1 + params.columns - 1;
  const bool records = params.columns > 1 && params.draft_states == DraftStates::records;
  std::vector<StateSpec> specs = {{.name = "recurrent",
                                   .dtype = params.recurrent,
                                   .shape = {c_.heads, c_.head_dim, c_.head_dim},
                                   .rule = records ? SlotRule::replay : SlotRule::column,
                                   .shard_axis = 0},
                                  {.name = "conv",
                                   .dtype = params.activation,
                                   .shape = {window, 3 * c_.heads * c_.head_dim},
                                   .rule = SlotRule::window,
                                   .shard_axis = 1,
                                   .shard_groups = 3}};
  if (records)
    specs.push_back({.name = "records",
                     .dtype = DType::f32,
                     .shape = {params.columns - 1, c_.heads, 3 * c_.head_dim},
                     .rule = SlotRule::record,
                     .shard_axis = 1});
  return specs;
}

void KdaLayer::replay(const Exec& ex, const View<const int32_t>& slot, const View<const int32_t>& accepted,
                      StateView state) const {
  if (state.size() > 2)
    kda_replay(ex, {.state = state[0], .records = state[2].as<float>(), .slot = slot, .accepted = accepted});
}

// f_a(x) is an input of f_b like any other. F x goes straight into the recurrence, in fp32: F is rounded once, so with
// no rounding behind it a composed gate is nearer to f_b f_a x than the two steps are, on any model.
DType KdaLayer::decay_dtype(const AnyConstView& x) const {
  return c_.gate_form == KdaGateForm::composed ? DType::f32 : x.dtype;
}

KdaLayer::Inputs KdaLayer::take_inputs(const Exec& ex, const AnyConstView& x) const {
  const int64_t T = x.dim(0), P = c_.heads * c_.head_dim;
  const auto take = [&](int64_t width) { return ex.scratch->take(x.dtype, {T, width}); };
  Inputs in{.qkv = take(3 * P),
            .gate = take(P),
            .decay = ex.scratch->take(decay_dtype(x), {T, P}),
            .beta = ex.scratch->take<float>({T, c_.heads})};
  in.low_gate = c_.full_rank_gate ? in.gate : take(g_.rows);
  in.low_decay = c_.gate_form == KdaGateForm::composed ? in.decay : take(f_.rows);
  return in;
}

// The second of the low-rank pairs of projections.
void KdaLayer::expand_decay(const Exec& ex, const Inputs& in) const {
  if (c_.gate_form == KdaGateForm::factored) linear(ex, {.x = in.low_decay, .w = f_b_, .out = in.decay});
}
void KdaLayer::expand_gate(const Exec& ex, const Inputs& in) const {
  if (!c_.full_rank_gate) linear(ex, {.x = in.low_gate, .w = g_b_, .out = in.gate});
}

// Both at once, where they are stored alike.
void KdaLayer::expand_both(const Exec& ex, const Inputs& in) const {
  if (c_.gate_form == KdaGateForm::factored && !c_.full_rank_gate && stored_alike(f_b_, g_b_)) {
    const LinearPart gate[] = {{g_b_, in.gate, in.low_gate}};
    return linear(ex, {.x = in.low_decay, .w = f_b_, .out = in.decay, .more = gate});
  }
  expand_decay(ex, in);
  expand_gate(ex, in);
}

void KdaLayer::project_on_one_queue(const Exec& ex, const AnyConstView& x, const Inputs& in) const {
  const int64_t P = c_.heads * c_.head_dim;
  const LinearPart parts[] = {{q_, in.qkv.columns(0, P)}, {k_, in.qkv.columns(P, P)}, {v_, in.qkv.columns(2 * P, P)},
                              {g_, in.low_gate},          {f_, in.low_decay},         {b_, in.beta}};
  project_runs(ex, x, parts);
}

void KdaLayer::forward(const Exec& ex, const Batch& b, StateView state, const AnyConstView& x,
                       const AnyConstView& addend, const AnyView& out) const {
  Arena::Scope scope(*ex.scratch);
  const int64_t T = x.dim(0), H = c_.heads, K = c_.head_dim, P = H * K;
  const Sequences seq{.cu = b.cu,
                      .slot = b.slot,
                      .accepted = b.accepted,
                      .fresh = b.fresh,
                      .snapshot = b.snapshot,
                      .n_prefill = b.n_prefill,
                      .n_decode = b.n_decode,
                      .max_len = b.max_len};

  // q | k | v stay side by side from the projections through the convolution into the recurrence. Beside them, where a
  // second queue pays, run the projections that the recurrence reads as they are: f_a and f_b one behind the other, b,
  // and g too unless it is stored as q, k and v are and of full rank; the bits are those of one queue.
  const Inputs in = take_inputs(ex, x);
  const AnyView mixed = ex.scratch->take(x.dtype, {T, 3 * P}),
                core = ex.scratch->take(x.dtype, {T, P}).split_last(H, K);
  // beta stays raw: its sigmoid is taken once, in fp32, by the recurrence.
  const KdaDecodeArgs step{.qkv = in.qkv,
                           .conv_weight = conv_,
                           .decay = in.decay.split_last(H, K),
                           .beta = in.beta,
                           .a_log = a_log_,
                           .dt_bias = View<const float>(dt_bias_.data, {H, K}),
                           .gate_kind = c_.bounded_gate ? KdaGate::bounded : KdaGate::softplus,
                           .lower_bound = c_.bounded_gate ? c_.lower_bound : -5.0f,
                           .scale = 1.0f / std::sqrt(static_cast<float>(K)),
                           .gate = in.gate.split_last(H, K),
                           .norm_weight = o_norm_,
                           .norm_eps = c_.norm_eps,
                           .seq = seq,
                           .state = state[0],
                           .window = state[1],
                           .out = core};
  const bool fused = b.n_prefill == 0 && seq.columns() == 1 && kda_decode_fuses(ex, step);
  const auto convolve = [&] {
    if (!fused) short_conv(ex, {.x = in.qkv, .weight = conv_, .seq = seq, .state = state[1], .out = mixed});
  };
  const bool two_queues = ex.overlaps(T);
  if (two_queues) {
    const bool g_in_front = c_.full_rank_gate && stored_alike(g_, q_);
    const LinearPart front[] = {
        {q_, in.qkv.columns(0, P)}, {k_, in.qkv.columns(P, P)}, {v_, in.qkv.columns(2 * P, P)}, {g_, in.low_gate}};
    const LinearPart beside[] = {{f_, in.low_decay}, {b_, in.beta}, {g_, in.low_gate}};
    Fork side(ex);
    project_runs(side, x, std::span(beside).first(g_in_front ? 2 : 3));
    expand_both(side, in);
    project_runs(ex, x, std::span(front).first(g_in_front ? 4 : 3));
    convolve();
    side.join();
  } else {
    project_on_one_queue(ex, x, in);
    convolve();
    expand_decay(ex, in);
    if (fused) expand_gate(ex, in);
  }

  if (fused) {
    kda_decode(ex, step);
  } else {
    kda(ex, {.q = mixed.columns(0, P).split_last(H, K),
             .k = mixed.columns(P, P).split_last(H, K),
             .v = mixed.columns(2 * P, P).split_last(H, K),
             .gate = step.decay,
             .beta = step.beta,
             .a_log = step.a_log,
             .dt_bias = step.dt_bias,
             .gate_kind = step.gate_kind,
             .lower_bound = step.lower_bound,
             .scale = step.scale,
             .seq = seq,
             .state = state[0],
             .records = state.size() > 2 ? state[2].as<float>() : View<float>(),
             .out = core});
    if (!two_queues) expand_gate(ex, in);
    gated_norm(ex, {.x = core,
                    .gate = step.gate,
                    .weight = step.norm_weight,
                    .eps = step.norm_eps,
                    .live = b.live(),
                    .out = core});
  }
  linear_over_ranks(ex, AnyConstView(core.data, core.dtype, {T, P}), o_, addend, out);
}

}  // namespace kdelta
