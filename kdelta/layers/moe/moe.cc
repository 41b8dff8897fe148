#include "kdelta/layers/moe/moe.h"

#include <optional>

#include "kdelta/ops/all_reduce/all_reduce.h"
#include "kdelta/ops/grouped_linear/grouped_linear.h"
#include "kdelta/ops/linear/linear.h"
#include "kdelta/ops/moe_combine/moe_combine.h"
#include "kdelta/ops/norm/norm.h"
#include "kdelta/ops/router/router.h"

namespace kdelta {

struct Moe::Routing {
  View<int32_t> expert, position, source, expert_begin;
  View<float> weight;
};

Moe::Moe(const MoeConfig& config) : c_(config) {
  const auto E = static_cast<size_t>(held());
  w1_.resize(E), w2_.resize(E), w3_.resize(E);
  if (c_.shared_width > 0)
    shared_ = std::make_unique<Mlp>(MlpConfig{.hidden = c_.hidden,
                                              .width = c_.shared_width,
                                              .activation = c_.activation,
                                              .beta = c_.beta,
                                              .linear_beta = c_.linear_beta,
                                              .prefix = "shared_experts."});
}

std::vector<WeightSpec> Moe::weights() {
  const int64_t inner = c_.latent > 0 ? c_.latent : c_.hidden;
  const auto part = [&](ShardRule rule) { return c_.width_dealt ? rule : ShardRule::whole; };
  std::vector<WeightSpec> w = {{.names = {"gate"}, .shape = {c_.experts, c_.hidden}, .target = &gate_},
                               {.names = {"gate.e_score_correction_bias"},
                                .kind = WeightKind::vector,
                                .shape = {c_.experts},
                                .suffix = "",
                                .target = &bias_}};
  if (c_.latent > 0) {
    w.push_back({.names = {"routed_expert_down_proj"}, .shape = {c_.latent, c_.hidden}, .target = &latent_down_});
    w.push_back({.names = {"routed_expert_up_proj"},
                 .shape = {c_.hidden, c_.latent_held > 0 ? c_.latent_held : c_.latent},
                 .shard = c_.latent_held > 0 ? ShardRule::columns : ShardRule::whole,
                 .target = &latent_up_});
    if (c_.latent_norm)
      w.push_back(
          {.names = {"routed_expert_norm"}, .kind = WeightKind::vector, .shape = {c_.latent}, .target = &latent_norm_});
  }
  for (int64_t e = 0; e < held(); ++e) {
    const std::string prefix = "experts." + std::to_string(c_.first + e) + ".";
    const auto i = static_cast<size_t>(e);
    const ShardRule rows = part(ShardRule::rows), columns = part(ShardRule::columns);
    const auto add = [&](const char* name, Shape shape, ShardRule shard, const char* group, Matrix* target) {
      w.push_back({.names = {prefix + name},
                   .shape = shape,
                   .shard = shard,
                   .group = group,
                   .one_call = true,
                   .target = target});
    };
    add("w1", {c_.width, inner}, rows, "w1 of all experts", &w1_[i]);
    add("w3", {c_.width, inner}, rows, "w3 of all experts", &w3_[i]);
    add("w2", {inner, c_.width}, columns, "w2 of all experts", &w2_[i]);
  }
  if (shared_) {
    for (WeightSpec& s : shared_->weights()) w.push_back(std::move(s));
  }
  return w;
}

Moe::Routing Moe::route(const Exec& ex, const Batch& b, const AnyConstView& x) const {
  const int64_t T = x.dim(0), k = c_.chosen;
  const Routing r{.expert = ex.scratch->take<int32_t>({T, k}),
                  .position = ex.scratch->take<int32_t>({T, k}),
                  .source = ex.scratch->take<int32_t>({T * k}),
                  .expert_begin = ex.scratch->take<int32_t>({held() + 1}),
                  .weight = ex.scratch->take<float>({T, k})};
  Arena::Scope scope(*ex.scratch);
  const View<float> logits = ex.scratch->take<float>({T, c_.experts});
  linear(ex, {.x = x, .w = gate_, .out = logits});
  router(ex, {.logits = logits,
              .bias = bias_,
              .k = k,
              .groups = c_.groups,
              .topk_groups = c_.topk_groups,
              .renormalize = c_.renormalize,
              .scaling = c_.scaling,
              .live = b.live(),
              .expert = r.expert,
              .weight = r.weight,
              .position = r.position,
              .source = r.source,
              .expert_begin = r.expert_begin,
              .first = c_.first,
              .held = held()});
  ex.show("router_idx", r.expert);
  ex.show("router_weight", r.weight);
  return r;
}

AnyView Moe::run_experts(const Exec& ex, const Routing& r, const AnyConstView& z) const {
  const int64_t P = r.source.dim(0), inner = c_.latent > 0 ? c_.latent : c_.hidden;
  // Partial sums of ranks are rounded when they are whole.
  const AnyView y = ex.scratch->take(c_.width_dealt ? DType::f32 : z.dtype, {P, inner});
  Arena::Scope scope(*ex.scratch);
  const AnyView gate = ex.scratch->take(z.dtype, {P, c_.width});
  GroupedLinearArgs first{.x = z, .row = r.source, .expert_begin = r.expert_begin, .w = w1_, .out = gate};
  GroupedLinearArgs gated = first;
  gated.up_w = w3_, gated.activation = c_.activation, gated.beta = c_.beta, gated.linear_beta = c_.linear_beta;
  const bool in_one_pass = grouped_linear_gates(ex, gated);
  if (in_one_pass) {
    grouped_linear(ex, gated);
  } else {
    grouped_linear(ex, first);
    const AnyView up = ex.scratch->take(z.dtype, {P, c_.width});
    first.w = w3_, first.out = up;
    grouped_linear(ex, first);
    activation(
        ex,
        {.kind = c_.activation, .beta = c_.beta, .linear_beta = c_.linear_beta, .gate = gate, .up = up, .out = gate});
  }
  grouped_linear(ex, {.x = gate, .expert_begin = r.expert_begin, .w = w2_, .out = y, .routing_settled = in_one_pass});
  return y;
}

void Moe::sum_routed(const Exec& ex, const Batch& b, const AnyConstView& x, const AnyConstView& z,
                     const AnyConstView& addend, const AnyView& out, Fork* beside) const {
  const Routing r = route(ex, b, x);
  const AnyView y = run_experts(ex, r, z);
  if (beside != nullptr) beside->join();
  moe_combine(ex, {.y = y, .position = r.position, .weight = r.weight, .addend = addend, .out = out});
}

void Moe::forward(const Exec& ex, const Batch& b, const AnyConstView& x, const AnyConstView& addend,
                  const AnyView& out) const {
  if (ex.comm != nullptr) return forward_over_ranks(ex, b, x, addend, out);
  Arena::Scope scope(*ex.scratch);
  const int64_t T = x.dim(0);
  AnyConstView rest = addend;  // what the routed sum is added to
  std::optional<Fork> beside;  // where the shared experts run, if not in front of the routed ones
  if (shared_) {
    const AnyView shared = ex.scratch->take(x.dtype, {T, c_.hidden});
    if (ex.overlaps(T)) beside.emplace(ex);
    shared_->forward(beside ? beside->exec() : ex, b, x, addend, shared);
    rest = shared;
  }
  if (c_.latent == 0) return sum_routed(ex, b, x, x, rest, out, beside ? &*beside : nullptr);
  const AnyView z = ex.scratch->take(x.dtype, {T, c_.latent});
  linear(ex, {.x = x, .w = latent_down_, .out = z});
  sum_routed(ex, b, x, z, {}, z);
  if (c_.latent_norm) norm(ex, {.x = z, .weight = latent_norm_, .out = z, .eps = c_.norm_eps});
  if (beside) beside->join();
  linear(ex, {.x = z, .w = latent_up_, .addend = rest, .out = out});
}

// The norm needs the sum of all ranks, so there are two meetings: of the latents, and of what is projected up from this
// rank's columns of them together with the shared experts. These come last: moe_combine does not read the addend of a
// token that chose no expert of this rank.
void Moe::forward_over_ranks(const Exec& ex, const Batch& b, const AnyConstView& x, const AnyConstView& addend,
                             const AnyView& out) const {
  Arena::Scope scope(*ex.scratch);
  Exec own = ex;  // of this rank alone
  own.comm = nullptr;
  const int64_t T = x.dim(0);
  const AnyView partial = ex.scratch->take(DType::f32, {T, c_.hidden});
  if (c_.latent == 0) {
    sum_routed(own, b, x, x, {}, partial);
  } else {
    const AnyView z = ex.scratch->take(x.dtype, {T, c_.latent}), sum = ex.scratch->take(DType::f32, {T, c_.latent});
    linear(own, {.x = x, .w = latent_down_, .out = z});
    sum_routed(own, b, x, z, {}, sum);
    all_reduce(ex, {.partial = sum, .out = z});
    if (c_.latent_norm) norm(own, {.x = z, .weight = latent_norm_, .out = z, .eps = c_.norm_eps});
    const int64_t columns = latent_up_.cols;
    linear(own, {.x = z.columns(ex.comm->rank() * columns, columns), .w = latent_up_, .out = partial});
  }
  if (shared_) shared_->forward(own, b, x, partial, partial);
  all_reduce(ex, {.partial = partial, .addend = addend, .out = out});
}

}  // namespace kdelta
