#include "kdelta/model/decoder.h"

#include "kdelta/core/check.h"
#include "kdelta/core/trace.h"
#include "kdelta/layers/kda/kda.h"
#include "kdelta/layers/mla/mla.h"
#include "kdelta/layers/mlp/mlp.h"
#include "kdelta/layers/moe/moe.h"
#include "kdelta/ops/all_gather/all_gather.h"
#include "kdelta/ops/all_reduce/all_reduce.h"
#include "kdelta/ops/embed/embed.h"
#include "kdelta/ops/linear/linear.h"

namespace kdelta {
namespace {

ActivationKind activation_kind(const ModelConfig& c) {
  switch (c.activation) {
    case HiddenActivation::silu:
      return ActivationKind::swiglu;
    case HiddenActivation::situ:
      return ActivationKind::situ;
  }
  KDELTA_UNREACHABLE("hidden activation", c.activation);
}

std::unique_ptr<Mixer> make_mixer(const ModelConfig& c, const Shard& shard, MixerKind kind) {
  switch (kind) {
    case MixerKind::kda:
      return std::make_unique<KdaLayer>(
          KdaLayerConfig{.hidden = c.hidden_size,
                         .heads = shard.share(c.kda.heads, "linear_attn_config.num_heads"),
                         .head_dim = c.kda.head_dim,
                         .conv_width = c.kda.conv_width,
                         .gate_form = c.kda.composed_gate ? KdaGateForm::composed : KdaGateForm::factored,
                         .full_rank_gate = c.kda.full_rank_gate,
                         .bounded_gate = c.kda.gate_lower_bound.has_value(),
                         .lower_bound = c.kda.gate_lower_bound.value_or(0),
                         .norm_eps = c.rms_norm_eps});
    case MixerKind::mla:
      return std::make_unique<MlaLayer>(MlaLayerConfig{.hidden = c.hidden_size,
                                                       .heads = shard.share(c.mla.heads, "num_attention_heads"),
                                                       .nope = c.mla.nope,
                                                       .rope = c.mla.rope,
                                                       .value = c.mla.value,
                                                       .latent = c.mla.latent,
                                                       .query_rank = c.mla.query_rank,
                                                       .output_gate = c.mla.output_gate});
  }
  KDELTA_UNREACHABLE("mixer kind", kind);
}

std::unique_ptr<Ffn> make_ffn(const ModelConfig& c, const Shard& shard, int64_t layer) {
  const ActivationKind act = activation_kind(c);
  const bool by_width = shard.ranks > 1 && shard.split == ExpertSplit::width;
  if (!c.is_moe(layer))
    return std::make_unique<Mlp>(MlpConfig{.hidden = c.hidden_size,
                                           .width = shard.share(c.dense_width, "intermediate_size"),
                                           .activation = act,
                                           .beta = c.situ_beta,
                                           .linear_beta = c.situ_linear_beta,
                                           .prefix = ""});
  const int64_t held = by_width ? c.moe.experts : shard.share(c.moe.experts, "num_experts");
  return std::make_unique<Moe>(
      MoeConfig{.hidden = c.hidden_size,
                .experts = c.moe.experts,
                .chosen = c.moe.chosen,
                .first = by_width ? 0 : shard.rank * held,
                .held = held,
                .width = by_width ? shard.share(c.moe.width, "moe_intermediate_size") : c.moe.width,
                .width_dealt = by_width,
                .latent = c.moe.latent,
                .latent_held = shard.ranks > 1 ? shard.share(c.moe.latent, "routed_expert_hidden_size") : 0,
                .latent_norm = c.moe.latent_norm,
                .groups = c.moe.groups,
                .topk_groups = c.moe.topk_groups,
                .renormalize = c.moe.renormalize,
                .scaling = c.moe.scaling,
                .shared_width = shard.share(c.moe.shared * c.moe.width, "width of the shared experts"),
                .activation = act,
                .beta = c.situ_beta,
                .linear_beta = c.situ_linear_beta,
                .norm_eps = c.rms_norm_eps});
}

}  // namespace

Decoder::Decoder(const ModelConfig& config, const Shard& shard) : c_(config), shard_(shard) {
  for (int64_t l = 0; l < c_.layers(); ++l) {
    layers_.push_back({.mixer = make_mixer(c_, shard_, c_.mixer[static_cast<size_t>(l)]),
                       .ffn = make_ffn(c_, shard_, l),
                       .ffn_prefix = c_.is_moe(l) ? "block_sparse_moe." : "mlp.",
                       .input_norm = {},
                       .post_norm = {}});
    const std::string& ffn = layers_.back().ffn_prefix;
    sublayers_.push_back({.name = layer_prefix(l) + "self_attn", .breaks = true});
    sublayers_.push_back({.name = layer_prefix(l) + ffn.substr(0, ffn.size() - 1), .breaks = false});
  }
}

std::vector<PlacedSpec> Decoder::weights() {
  const int64_t V = shard_.share(c_.vocab_size, "vocab_size"), D = c_.hidden_size;
  const auto norm = [&](const char* name, View<const float>* target) {
    return WeightSpec{.names = {name}, .kind = WeightKind::vector, .shape = {D}, .target = target};
  };
  std::vector<PlacedSpec> all = {{c_.weight_prefix,
                                  {.names = {"model.embed_tokens"},
                                   .shape = {V, D},
                                   .shard = ShardRule::rows,
                                   .looked_up = true,
                                   .target = &embed_}},
                                 {c_.weight_prefix, norm("model.norm", &final_norm_)}};
  if (!c_.tied_embeddings)
    all.push_back(
        {c_.weight_prefix, {.names = {"lm_head"}, .shape = {V, D}, .shard = ShardRule::rows, .target = &head_}});
  for (int64_t l = 0; l < c_.layers(); ++l) {
    Layer& layer = layers_[static_cast<size_t>(l)];
    const std::string prefix = layer_prefix(l);
    all.push_back({prefix, norm("input_layernorm", &layer.input_norm)});
    all.push_back({prefix, norm("post_attention_layernorm", &layer.post_norm)});
    for (WeightSpec& s : layer.mixer->weights()) all.push_back({prefix + "self_attn.", std::move(s)});
    for (WeightSpec& s : layer.ffn->weights()) all.push_back({prefix + layer.ffn_prefix, std::move(s)});
  }
  for (PlacedSpec& s : residual_weights()) all.push_back(std::move(s));
  return all;
}

std::vector<std::vector<StateSpec>> Decoder::states(const StateParams& params) const {
  std::vector<std::vector<StateSpec>> all;
  for (const Layer& layer : layers_) all.push_back(layer.mixer->states(params));
  return all;
}

void Decoder::forward(const Exec& ex, const Batch& b, std::span<const std::vector<AnyView>> states, DType activation,
                      const View<float>& logits) const {
  enqueue(ex, {b, states, activation, logits});
}

void Decoder::forward_in_pieces(const Exec& ex, const Batch& b, std::span<const std::vector<AnyView>> states,
                                DType activation, const View<float>& logits, const std::vector<bool>& broken,
                                Pieces& pieces) const {
  KDELTA_CHECK(broken.size() == sublayers_.size(), "a break list of ", broken.size(), " sublayers, the model has ",
               sublayers_.size());
  // Where the residual stream lies is told while mixers run.
  for (size_t s = 0; s < broken.size(); ++s) KDELTA_CHECK(broken[s] || !sublayers_[s].breaks, sublayers_[s].name);
  enqueue(ex, {b, states, activation, logits, &broken, &pieces});
}

void Decoder::enqueue(const Exec& ex, const Step& step) const {
  Arena::Scope scope(*ex.scratch);
  Exec own = ex;
  PlannedRanks planned(shard_.rank, shard_.ranks);
  if (ex.planning) own.comm = &planned;
  if (shard_.ranks == 1) own.comm = nullptr;  // whole, on whichever rank it runs
  if (shard_.ranks > 1 && (own.comm == nullptr || own.comm->rank() != shard_.rank || own.comm->ranks() != shard_.ranks))
    fail(ErrorCode::invalid_argument,
         "comm: ", own.comm == nullptr ? "none" : str("rank ", own.comm->rank(), " of ", own.comm->ranks()),
         ", expected rank ", shard_.rank, " of ", shard_.ranks, ", what the model was made for");
  with_residual(own, step);
}

void Decoder::embed_tokens(const Exec& ex, const View<const int32_t>& token, const AnyView& out) const {
  if (ex.comm == nullptr) return embed(ex, {.token = token, .table = embed_, .out = out});
  Arena::Scope scope(*ex.scratch);
  const AnyView partial = ex.scratch->take(DType::f32, out.shape);
  embed(ex, {.token = token,
             .table = embed_,
             .out = partial,
             .first = shard_.rank * embed_.rows,
             .vocabulary = c_.vocab_size});
  all_reduce(ex, {.partial = partial, .out = out});
}

void Decoder::project_logits(const Exec& ex, const AnyConstView& x, const View<float>& logits) const {
  const Matrix& head = c_.tied_embeddings ? embed_ : head_;
  if (ex.comm == nullptr) return linear(ex, {.x = x, .w = head, .out = logits});
  Arena::Scope scope(*ex.scratch);
  const AnyView part = ex.scratch->take(DType::f32, {x.dim(0), head.rows});
  linear(ex, {.x = x, .w = head, .out = part});
  all_gather(ex, {.part = part, .out = logits});
}

void Decoder::replay(const Exec& ex, const View<const int32_t>& slot, const View<const int32_t>& accepted,
                     std::span<const std::vector<AnyView>> states) const {
  for (size_t l = 0; l < layers_.size(); ++l) layers_[l].mixer->replay(ex, slot, accepted, states[l]);
}

void Decoder::read_input(const Exec& ex, size_t s, Residual& stream, const AnyView& x) const {
  const auto l = static_cast<int64_t>(s / 2);
  if (s % 2 == 1) return stream.read_ffn_input(ex, l, x);
  stream.read_mixer_input(ex, l, x);
  ex.show("mixer_in", x);
}

void Decoder::run_sublayer(const Exec& ex, size_t s, const Step& step, Residual& stream, const AnyView& x) const {
  const TraceRange range(ex.planning ? nullptr : sublayers_[s].name.c_str());
  const Layer& layer = layers_[s / 2];
  if (s % 2 == 1) {
    layer.ffn->forward(ex, step.b, x, stream.sum(), stream.sum());
    return ex.show("layer_out", stream.sum());
  }
  const AnyConstView addend = stream.mixer_addend(static_cast<int64_t>(s / 2));
  layer.mixer->forward(ex, step.b, step.states[s / 2], x, addend, stream.sum());
}

// Between two breaks lies one piece: the sublayers there, and the reading of what the next break is given.
void Decoder::run_layers(Exec ex, const Step& step, Residual& stream) const {
  const Batch& b = step.b;
  const AnyView x = ex.scratch->take(step.activation, {b.tokens(), c_.hidden_size});
  const size_t all = sublayers_.size();
  size_t begin = 0, piece = 0;
  for (bool more = true; more; ++piece) {
    size_t end = begin;
    while (end < all && (step.broken == nullptr || !(*step.broken)[end])) ++end;
    more = end < all;
    const auto between = [&] {
      if (piece == 0) embed_tokens(ex, b.token, stream.sum());
      for (size_t s = begin; s < end + (more ? 1 : 0); ++s) {
        ex.layer = static_cast<int>(s / 2);
        read_input(ex, s, stream, x);
        if (s < end) run_sublayer(ex, s, step, stream, x);
      }
      ex.layer = -1;
      if (!more) stream.read_final(ex, x);
    };
    if (step.pieces == nullptr)
      between();
    else
      step.pieces->run(ex, piece, std::ref(between));  // by reference nothing is allocated
    if (!more) break;
    ex.layer = static_cast<int>(end / 2);
    run_sublayer(ex, end, step, stream, x);
    begin = end + 1;
  }
  ex.layer = -1;
  // Only the rows whose logits somebody wants reach the head: embed() is the gather of rows that this needs.
  const AnyView rows = ex.scratch->take(step.activation, {b.logit_row.dim(0), c_.hidden_size});
  embed(
      ex,
      {.token = b.logit_row, .table = dense_matrix(x.data, step.activation, b.tokens(), c_.hidden_size), .out = rows});
  project_logits(ex, rows, step.logits);
}

}  // namespace kdelta
