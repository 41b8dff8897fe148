#include "kdelta/model/unused.h"

#include <charconv>
#include <cstring>
#include <limits>
#include <set>
#include <string_view>
#include <unordered_set>

#include "kdelta/core/error.h"

namespace kdelta {
namespace {

constexpr std::string_view kWrapper = "language_model.";

bool is_vision(std::string_view name) {
  return name.starts_with("vision_tower.") || name.starts_with("mm_projector.");
}

std::string_view without_wrapper(std::string_view name) {
  return name.starts_with(kWrapper) ? name.substr(kWrapper.size()) : name;
}

// "PREFIXN.REST" -> N, REST; N is the largest int64_t when it is larger. -1: the name is none of these.
int64_t split_number(std::string_view name, std::string_view prefix, std::string_view* rest) {
  if (!name.starts_with(prefix)) return -1;
  name.remove_prefix(prefix.size());
  int64_t number = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  const auto digits = static_cast<size_t>(end - name.data());
  if (digits == 0 || number < -1 || digits >= name.size() || name[digits] != '.') return -1;
  *rest = name.substr(digits + 1);
  return error == std::errc() ? number : std::numeric_limits<int64_t>::max();
}

int64_t split_layer(std::string_view name, std::string_view* rest) {
  return split_number(without_wrapper(name), "model.layers.", rest);
}

// A field of config.json and the value with which the model would use a tensor.
struct Switch {
  const char* field = nullptr;  // null: none
  const char* value = nullptr;
};

Switch mixer_switch(const ModelConfig& c, int64_t layer, std::string_view part) {
  constexpr const char* kFullRank = "linear_attn_config.use_full_rank_gate";
  const auto is = [&](std::string_view name) {
    return part.starts_with(name) && part.substr(name.size()).starts_with('.');
  };
  if (c.mixer[static_cast<size_t>(layer)] == MixerKind::kda) {
    if (is("g_proj") && !c.kda.full_rank_gate) return {kFullRank, "true"};
    if ((is("g_a_proj") || is("g_b_proj")) && c.kda.full_rank_gate) return {kFullRank, "false"};
    return {};
  }
  if (is("g_proj") && !c.mla.output_gate) return {"mla_use_output_gate", "true"};
  if ((is("q_a_proj") || is("q_a_layernorm") || is("q_b_proj")) && c.mla.query_rank == 0)
    return {"q_lora_rank", "the rank"};
  if (is("q_proj") && c.mla.query_rank > 0) return {"q_lora_rank", "null"};
  return {};
}

// The field that decides between a dense layer and one of experts.
Switch experts_switch(const ModelConfig& c, int64_t layer) {
  if (c.moe.experts == 0) return {"num_experts", "the number of experts"};
  if (c.is_moe(layer)) return {"first_k_dense_replace", "more than this layer's index"};
  if (layer < c.moe.first_dense) return {"first_k_dense_replace", "at most this layer's index"};
  return {"moe_layer_freq", "a divisor of this layer's index"};
}

Switch moe_switch(const ModelConfig& c, int64_t layer, std::string_view part) {
  if (!c.is_moe(layer)) return experts_switch(c, layer);
  if (part.starts_with("shared_experts.") && c.moe.shared == 0) return {"num_shared_experts", "1 or more"};
  if ((part.starts_with("routed_expert_down_proj.") || part.starts_with("routed_expert_up_proj.")) && c.moe.latent == 0)
    return {"routed_expert_hidden_size", "the latent width"};
  if (part.starts_with("routed_expert_norm.") && !c.moe.latent_norm) return {"latent_moe_use_norm", "true"};
  std::string_view rest;
  if (split_number(part, "experts.", &rest) >= c.moe.experts) return {"num_experts", "more than the expert's index"};
  return {};
}

Switch layer_switch(const ModelConfig& c, int64_t layer, std::string_view part) {
  constexpr std::string_view kMixer = "self_attn.", kMoe = "block_sparse_moe.";
  if (part.starts_with(kMixer)) return mixer_switch(c, layer, part.substr(kMixer.size()));
  if (part.starts_with(kMoe)) return moe_switch(c, layer, part.substr(kMoe.size()));
  if (part.starts_with("mlp.") && c.is_moe(layer)) return experts_switch(c, layer);
  return {};
}

// Residual mixing has no switch within a kind of model: it is what makes a Kimi K3.
bool mixes_residuals(std::string_view part) {
  for (const char* name : {"self_attention_res_norm.", "self_attention_res_proj.", "mlp_res_norm.", "mlp_res_proj."})
    if (part.starts_with(name)) return true;
  return false;
}

Switch find_switch(const ModelConfig& c, int64_t layer, std::string_view name, std::string_view part) {
  const bool mixing = layer >= 0 ? mixes_residuals(part) : without_wrapper(name).starts_with("model.output_attn_res_");
  if (mixing && c.kind != ModelKind::kimi_k3) return {"architectures", "[\"KimiK3ForConditionalGeneration\"]"};
  return layer >= 0 ? layer_switch(c, layer, part) : Switch{};
}

class Judge {
 public:
  Judge(const Checkpoint& checkpoint, const ModelConfig& config, const Shard& shard, bool headers_only)
      : checkpoint_(checkpoint), c_(config), shard_(shard), headers_only_(headers_only) {}

  std::vector<std::string> notes(const std::vector<std::string>& unused) {
    find_draft_layers(unused);
    unused_.insert(unused.begin(), unused.end());
    for (const std::string& name : unused) judge(name);
    if (vision_ > 0) notes_.push_back(str(vision_, " vision tensors are ignored: kdelta serves the text model"));
    if (draft_ > 0)
      notes_.push_back(str(draft_, " tensors of multi-token prediction layers past num_hidden_layers (", c_.layers(),
                           ") are ignored"));
    if (past_ > 0)
      notes_.push_back(str(past_, " tensors of layers past num_hidden_layers (", c_.layers(), ") are ignored"));
    return std::move(notes_);
  }

 private:
  [[noreturn]] void refuse(const std::string& name, const std::string& reason) const {
    fail(ErrorCode::bad_file, checkpoint_.file_path(checkpoint_.find(name)->file), ": tensor ", name, ": ", reason);
  }

  // A prediction layer has an ordinary layer's tensors too, so it is known by the two that join it to the model.
  void find_draft_layers(const std::vector<std::string>& unused) {
    std::string_view part;
    for (const std::string& name : unused)
      if (const int64_t layer = split_layer(name, &part);
          layer >= c_.layers() && (part.starts_with("eh_proj.") || part.starts_with("enorm.")))
        draft_layers_.insert(layer);
  }

  void judge(const std::string& name) {
    if (is_vision(without_wrapper(name))) {
      ++vision_;
      return;
    }
    refuse_twin(name);
    refuse_lone_scale(name);
    refuse_companion(name);
    std::string_view part;
    const int64_t layer = split_layer(name, &part);
    if (layer >= c_.layers()) {
      ++(draft_layers_.contains(layer) ? draft_ : past_);
      return;
    }
    const Switch s = find_switch(c_, layer, name, part);
    if (s.field != nullptr)
      refuse(name, str("only used with ", path_of(s.field), ": ", s.value, ", which ", checkpoint_.directory(),
                       "/config.json does not say"));
    if (without_wrapper(name) == "lm_head.weight" && c_.tied_embeddings) return expect_tied(name);
    notes_.push_back("tensor " + name + " is not used by this model");
  }

  void refuse_twin(const std::string& name) const {
    const std::string plain(without_wrapper(name));
    const std::string twin = name == plain ? std::string(kWrapper) + name : plain;
    if (checkpoint_.find(twin) != nullptr) refuse(name, str("the same weight as ", twin, ", expected one of them"));
  }

  // A scheme of scales whose codes are no codes.
  void refuse_lone_scale(const std::string& name) const {
    constexpr std::string_view kScale = "_scale";
    const TensorInfo* weight =
        name.ends_with(".weight_scale") ? checkpoint_.find(name.substr(0, name.size() - kScale.size())) : nullptr;
    if (weight != nullptr)
      refuse(name, str("scales of ", weight->name, ", which is ", dtype_name(weight->dtype),
                       ", expected none or quantised codes"));
  }

  void refuse_companion(const std::string& name) const {
    for (const std::string_view ending :
         {".bias", ".weight_bias", ".weight_scale_2", ".weight_global_scale", ".weight_scale_inv", ".weight_zero_point",
          ".weight_g_idx", ".input_scale", ".input_global_scale", ".input_zero_point"}) {
      if (!name.ends_with(ending)) continue;
      const std::string weight = name.substr(0, name.size() - ending.size()) + ".weight";
      for (const std::string& stored : {weight, weight + "_packed"})
        if (checkpoint_.find(stored) != nullptr && !unused_.contains(stored))
          refuse(name, str("changes what ", stored, " computes, and kdelta does not compute with it"));
    }
  }

  void expect_tied(const std::string& name) {
    const TensorInfo& head = *checkpoint_.find(name);
    const std::string embedding = c_.weight_prefix + "model.embed_tokens.weight";
    const TensorInfo* e = checkpoint_.find(embedding);
    const int64_t part = head.bytes / shard_.ranks, mine = shard_.rank * part;
    const bool same = e != nullptr && e->dtype == head.dtype && e->shape == head.shape &&
                      (headers_only_ || std::memcmp(checkpoint_.data(*e) + mine, checkpoint_.data(head) + mine,
                                                    static_cast<size_t>(part)) == 0);
    if (!same)
      refuse(name, str("differs from ", embedding, ", but ", checkpoint_.directory(),
                       "/config.json has tie_word_embeddings: true"));
    notes_.push_back("tensor " + name + " repeats the embedding that it is tied to");
  }

  // K3's fields are those of its text part.
  std::string path_of(const std::string& field) const {
    return c_.kind == ModelKind::kimi_k3 && field != "architectures" ? "text_config." + field : field;
  }

  const Checkpoint& checkpoint_;
  const ModelConfig& c_;
  const Shard& shard_;
  bool headers_only_;
  std::set<int64_t> draft_layers_;
  std::unordered_set<std::string> unused_;
  std::vector<std::string> notes_;
  int64_t vision_ = 0, draft_ = 0, past_ = 0;
};

}  // namespace

void drop_other_ranks(const ModelConfig& c, const Shard& shard, std::vector<std::string>* unused) {
  if (shard.ranks == 1 || shard.split != ExpertSplit::experts) return;
  const int64_t held = c.moe.experts / shard.ranks;
  std::erase_if(*unused, [&](const std::string& name) {
    std::string_view part, rest;
    const int64_t layer = split_layer(name, &part);
    if (layer < 0 || layer >= c.layers() || !c.is_moe(layer)) return false;
    const int64_t expert = split_number(part, "block_sparse_moe.experts.", &rest);
    return expert >= 0 && expert < c.moe.experts && expert / held != shard.rank &&
           (rest.starts_with("w1.weight") || rest.starts_with("w2.weight") || rest.starts_with("w3.weight"));
  });
}

std::vector<std::string> judge_unused(const Checkpoint& checkpoint, const ModelConfig& config, const Shard& shard,
                                      const std::vector<std::string>& unused, bool headers_only) {
  return Judge(checkpoint, config, shard, headers_only).notes(unused);
}

}  // namespace kdelta
