#include "kdelta/layers/mla/mla.h"

#include <cmath>

#include "kdelta/layers/over_ranks.h"
#include "kdelta/ops/activation/activation.h"
#include "kdelta/ops/linear/linear.h"
#include "kdelta/ops/mla/mla.h"
#include "kdelta/ops/norm/norm.h"

namespace kdelta {

std::vector<WeightSpec> MlaLayer::weights() {
  const int64_t D = c_.hidden, Q = c_.heads * (c_.nope + c_.rope), V = c_.heads * c_.value;
  constexpr auto kRows = ShardRule::rows;  // heads; what is in front of them every rank holds whole
  std::vector<WeightSpec> w = {
      {.names = {"kv_a_proj_with_mqa"}, .shape = {c_.latent + c_.rope, D}, .target = &kv_a_},
      {.names = {"kv_a_layernorm"}, .kind = WeightKind::vector, .shape = {c_.latent}, .target = &kv_norm_},
      {.names = {"kv_b_proj"},
       .shape = {c_.heads * (c_.nope + c_.value), c_.latent},
       .shard = kRows,
       .absorbed = true,
       .target = &kv_b_},
      {.names = {"o_proj"}, .shape = {D, V}, .shard = ShardRule::columns, .target = &o_},
  };
  if (c_.query_rank > 0) {
    w.push_back({.names = {"q_a_proj"}, .shape = {c_.query_rank, D}, .target = &q_a_});
    w.push_back({.names = {"q_a_layernorm"}, .kind = WeightKind::vector, .shape = {c_.query_rank}, .target = &q_norm_});
    w.push_back({.names = {"q_b_proj"}, .shape = {Q, c_.query_rank}, .shard = kRows, .target = &q_b_});
  } else {
    w.push_back({.names = {"q_proj"}, .shape = {Q, D}, .shard = kRows, .target = &q_});
  }
  if (c_.output_gate) w.push_back({.names = {"g_proj"}, .shape = {V, D}, .shard = kRows, .target = &g_});
  return w;
}

std::vector<StateSpec> MlaLayer::states(const StateParams& params) const {
  return {{"latent", StateKind::page, params.activation, {params.page_tokens, c_.latent + c_.rope}}};
}

AnyView MlaLayer::query(const Exec& ex, const AnyConstView& x) const {
  const int64_t T = x.dim(0), width = c_.nope + c_.rope;
  const AnyView q = ex.scratch->take(x.dtype, {T, c_.heads * width});
  if (c_.query_rank > 0) {
    const AnyView low = ex.scratch->take(x.dtype, {T, c_.query_rank});
    linear(ex, {.x = x, .w = q_a_, .out = low});
    norm(ex, {.x = low, .weight = q_norm_, .out = low, .eps = c_.latent_norm_eps});
    linear(ex, {.x = low, .w = q_b_, .out = q});
  } else {
    linear(ex, {.x = x, .w = q_, .out = q});
  }
  return q.split_last(c_.heads, width);
}

void MlaLayer::forward(const Exec& ex, const Batch& b, StateView state, const AnyConstView& x,
                       const AnyConstView& addend, const AnyView& out) const {
  Arena::Scope scope(*ex.scratch);
  const int64_t T = x.dim(0), V = c_.heads * c_.value;
  const PagedSequences seq{.cu = b.cu,
                           .context = b.context,
                           .pages = b.pages,
                           .n_prefill = b.n_prefill,
                           .n_decode = b.n_decode,
                           .max_len = b.max_len,
                           .max_context = b.max_context};

  const AnyView q = query(ex, x);
  const AnyView kv = ex.scratch->take(x.dtype, {T, c_.latent + c_.rope});
  linear(ex, {.x = x, .w = kv_a_, .out = kv});
  const AnyView latent = kv.columns(0, c_.latent);
  norm(ex, {.x = latent, .weight = kv_norm_, .out = latent, .eps = c_.latent_norm_eps});
  mla_append(ex, {.latent = latent, .rope = kv.columns(c_.latent, c_.rope), .seq = seq, .cache = state[0]});

  const AnyView attended = ex.scratch->take(x.dtype, {T, V});
  mla(ex, {.q = q,
           .cache = state[0],
           .kv_b = kv_b_,
           .seq = seq,
           .nope = c_.nope,
           .rope = c_.rope,
           .value = c_.value,
           .latent = c_.latent,
           .scale = 1.0f / std::sqrt(static_cast<float>(c_.nope + c_.rope)),
           .out = attended.split_last(c_.heads, c_.value)});
  if (c_.output_gate) {
    const AnyView gate = ex.scratch->take(x.dtype, {T, V});
    linear(ex, {.x = x, .w = g_, .out = gate});
    activation(ex, {.kind = ActivationKind::sigmoid_gate, .gate = gate, .up = attended, .out = attended});
  }
  linear_over_ranks(ex, attended, o_, addend, out);
}

}  // namespace kdelta
