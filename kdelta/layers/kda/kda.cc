#include "kdelta/layers/kda/kda.h"

#include <cmath>

#include "kdelta/ops/gated_norm/gated_norm.h"
#include "kdelta/ops/kda/kda.h"
#include "kdelta/ops/linear/linear.h"
#include "kdelta/ops/short_conv/short_conv.h"

namespace kdelta {

std::vector<WeightSpec> KdaLayer::weights() {
  const int64_t D = c_.hidden, P = c_.heads * c_.head_dim, R = c_.head_dim;
  const auto matrix = [](const char* name, Shape shape, Matrix* target) {
    return WeightSpec{.names = {name}, .shape = shape, .target = target};
  };
  std::vector<WeightSpec> w = {
      matrix("q_proj", {P, D}, &q_),
      matrix("k_proj", {P, D}, &k_),
      matrix("v_proj", {P, D}, &v_),
      matrix("f_a_proj", {R, D}, &f_a_),
      matrix("f_b_proj", {P, R}, &f_b_),
      matrix("b_proj", {c_.heads, D}, &b_),
      matrix("o_proj", {D, P}, &o_),
      {.names = {"q_conv1d", "k_conv1d", "v_conv1d"},
       .kind = WeightKind::conv_taps,
       .shape = {3 * P, c_.conv_width},
       .target = &conv_},
      {.names = {"A_log"}, .kind = WeightKind::head_scalar, .shape = {c_.heads}, .suffix = "", .target = &a_log_},
      {.names = {"dt_bias"}, .kind = WeightKind::vector, .shape = {P}, .suffix = "", .target = &dt_bias_},
      {.names = {"o_norm"}, .kind = WeightKind::vector, .shape = {c_.head_dim}, .target = &o_norm_},
  };
  if (c_.full_rank_gate) {
    w.push_back(matrix("g_proj", {P, D}, &g_));
  } else {
    w.push_back(matrix("g_a_proj", {R, D}, &g_a_));
    w.push_back(matrix("g_b_proj", {P, R}, &g_b_));
  }
  return w;
}

std::vector<StateSpec> KdaLayer::states(const StateParams& params) const {
  const int64_t window = c_.conv_width - 1 + params.columns - 1;
  return {{.name = "recurrent",
           .dtype = params.recurrent,
           .shape = {c_.heads, c_.head_dim, c_.head_dim},
           .rule = SlotRule::column,
           .shard_axis = 0},
          {.name = "conv",
           .dtype = params.activation,
           .shape = {window, 3 * c_.heads * c_.head_dim},
           .rule = SlotRule::window,
           .shard_axis = 1,
           .shard_groups = 3}};
}

void KdaLayer::forward(const Exec& ex, const Batch& b, StateView state, const AnyConstView& x,
                       const AnyConstView& addend, const AnyView& out) const {
  Arena::Scope scope(*ex.scratch);
  const int64_t T = x.dim(0), H = c_.heads, K = c_.head_dim, P = H * K;
  const auto take = [&](int64_t width) { return ex.scratch->take(x.dtype, {T, width}); };
  const Sequences seq{.cu = b.cu,
                      .slot = b.slot,
                      .accepted = b.accepted,
                      .fresh = b.fresh,
                      .snapshot = b.snapshot,
                      .n_prefill = b.n_prefill,
                      .n_decode = b.n_decode,
                      .max_len = b.max_len};

  // q | k | v stay side by side from the projections through the convolution into the recurrence.
  const AnyView qkv = take(3 * P), mixed = take(3 * P);
  linear(ex, {.x = x, .w = q_, .out = qkv.columns(0, P)});
  linear(ex, {.x = x, .w = k_, .out = qkv.columns(P, P)});
  linear(ex, {.x = x, .w = v_, .out = qkv.columns(2 * P, P)});
  short_conv(ex, {.x = qkv, .weight = conv_, .seq = seq, .state = state[1], .out = mixed});

  const AnyView low = take(K), decay = take(P);
  linear(ex, {.x = x, .w = f_a_, .out = low});
  linear(ex, {.x = low, .w = f_b_, .out = decay});
  const View<float> beta = ex.scratch->take<float>({T, H});
  linear(ex, {.x = x, .w = b_, .out = beta});

  const AnyView core = take(P).split_last(H, K);
  kda(ex, {.q = mixed.columns(0, P).split_last(H, K),
           .k = mixed.columns(P, P).split_last(H, K),
           .v = mixed.columns(2 * P, P).split_last(H, K),
           .gate = decay.split_last(H, K),
           .beta = beta,
           .a_log = a_log_,
           .dt_bias = View<const float>(dt_bias_.data, {H, K}),
           .gate_kind = c_.bounded_gate ? KdaGate::bounded : KdaGate::softplus,
           .lower_bound = c_.bounded_gate ? c_.lower_bound : -5.0f,
           .scale = 1.0f / std::sqrt(static_cast<float>(K)),
           .seq = seq,
           .state = state[0],
           .out = core});

  const AnyView gate = take(P);
  if (c_.full_rank_gate) {
    linear(ex, {.x = x, .w = g_, .out = gate});
  } else {
    linear(ex, {.x = x, .w = g_a_, .out = low});
    linear(ex, {.x = low, .w = g_b_, .out = gate});
  }
  gated_norm(
      ex,
      {.x = core, .gate = gate.split_last(H, K), .weight = o_norm_, .eps = c_.norm_eps, .live = b.live(), .out = core});
  linear(ex, {.x = AnyConstView(core.data, core.dtype, {T, P}), .w = o_, .addend = addend, .out = out});
}

}  // namespace kdelta
