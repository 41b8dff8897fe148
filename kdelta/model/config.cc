#include "kdelta/model/config.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kdelta/core/check.h"
#include "kdelta/io/json_reader.h"

namespace kdelta {
namespace {

// Sizes beyond these are a broken file. Bytes of all matrices then fit 64 bits: 2^40 elements, less than 2^20 times.
constexpr int64_t kMaxSize = int64_t{1} << 20, kMaxLayers = int64_t{1} << 12, kMaxExperts = int64_t{1} << 18;

// A size that several fields make together.
void check_size(const JsonReader& r, const char* field, const char* formula, int64_t value, int64_t most = kMaxSize) {
  if (value > most) r.refuse(field, str(formula, " of at most ", most, ", they make ", value));
}

// A number of the config as fp32; refused when fp32 cannot hold it.
float to_fp32(const JsonReader& r, const char* field, double value) {
  if (!(std::fabs(value) <= static_cast<double>(std::numeric_limits<float>::max())))
    r.refuse(field, "a number within fp32's range");
  return static_cast<float>(value);
}

float get_float(const JsonReader& r, const char* field) {
  return to_fp32(r, field, r.get<double>(field));
}

float find_float(const JsonReader& r, const char* field, float absent) {
  const auto value = r.find<double>(field);
  return value ? to_fp32(r, field, *value) : absent;
}

void read_layer_kinds(const JsonReader& linear, int64_t layers, ModelConfig& c) {
  c.mixer.assign(static_cast<size_t>(layers), MixerKind::mla);
  std::vector<int> named(static_cast<size_t>(layers), 0);
  // Both lists are 1-based.
  const auto mark = [&](const char* field, MixerKind kind) {
    for (int64_t number : linear.get<std::vector<int64_t>>(field)) {
      if (number < 1 || number > layers) linear.refuse(field, str("layer numbers within 1..", layers));
      c.mixer[static_cast<size_t>(number - 1)] = kind;
      ++named[static_cast<size_t>(number - 1)];
    }
  };
  mark("kda_layers", MixerKind::kda);
  mark("full_attn_layers", MixerKind::mla);
  for (int count : named)
    if (count != 1) linear.refuse("kda_layers", "every layer once in kda_layers or full_attn_layers");
}

void read_kda(const JsonReader& r, int64_t layers, ModelConfig& c) {
  const auto linear = r.get<JsonReader>("linear_attn_config");
  c.kda.heads = linear.get_in("num_heads", 1, kMaxSize);
  c.kda.head_dim = linear.get_in("head_dim", 1, kMaxSize);
  c.kda.conv_width = linear.get_in("short_conv_kernel_size", 2, 4);
  c.kda.full_rank_gate = linear.find<bool>("use_full_rank_gate").value_or(false);
  check_size(linear, "num_heads", "num_heads * head_dim", c.kda.heads * c.kda.head_dim);
  if (const std::optional<double> bound = linear.find<double>("gate_lower_bound")) {
    if (!(*bound >= -5 && *bound < 0)) linear.refuse("gate_lower_bound", "a number in [-5, 0)");
    c.kda.gate_lower_bound = static_cast<float>(*bound);
  }
  read_layer_kinds(linear, layers, c);
}

void read_mla(const JsonReader& r, ModelConfig& c) {
  c.mla.heads = r.get_in("num_attention_heads", 1, kMaxSize);
  if (r.get<int64_t>("num_key_value_heads") != c.mla.heads)
    r.refuse("num_key_value_heads", str("num_attention_heads (", c.mla.heads, ")"));
  c.mla.nope = r.get_in("qk_nope_head_dim", 1, kMaxSize);
  c.mla.rope = r.get_in("qk_rope_head_dim", 0, kMaxSize);
  c.mla.value = r.get_in("v_head_dim", 1, kMaxSize);
  c.mla.latent = r.get_in("kv_lora_rank", 1, kMaxSize);
  check_size(r, "num_attention_heads", "num_attention_heads * (qk_nope_head_dim + qk_rope_head_dim)",
             c.mla.heads * (c.mla.nope + c.mla.rope));
  check_size(r, "num_attention_heads", "num_attention_heads * (qk_nope_head_dim + v_head_dim)",
             c.mla.heads * (c.mla.nope + c.mla.value));
  check_size(r, "kv_lora_rank", "kv_lora_rank + qk_rope_head_dim", c.mla.latent + c.mla.rope);
  c.mla.query_rank = r.find_in("q_lora_rank", 1, kMaxSize).value_or(0);
  c.mla.output_gate = r.find<bool>("mla_use_output_gate").value_or(false);
  if (!r.get<bool>("mla_use_nope")) r.refuse("mla_use_nope", "true (rotary attention is not part of these models)");
}

void read_moe(const JsonReader& r, int64_t layers, ModelConfig& c) {
  c.moe.experts = r.get_in("num_experts", 0, kMaxSize);
  c.moe.first_dense = r.get_in("first_k_dense_replace", 0, kMaxSize);
  if (c.moe.experts == 0) return;
  check_size(r, "num_experts", "num_experts * num_hidden_layers", c.moe.experts * layers, kMaxExperts);
  c.moe.every = r.get_in("moe_layer_freq", 1, kMaxSize);
  c.moe.chosen = r.get_in("num_experts_per_token", 1, c.moe.experts);
  c.moe.width = r.get_in("moe_intermediate_size", 1, kMaxSize);
  c.moe.shared = r.get_in("num_shared_experts", 0, 1 << 16);
  check_size(r, "num_shared_experts", "num_shared_experts * moe_intermediate_size", c.moe.shared * c.moe.width);
  c.moe.renormalize = r.get<bool>("moe_renormalize");
  c.moe.scaling = get_float(r, "routed_scaling_factor");
  if (!(c.moe.scaling > 0)) r.refuse("routed_scaling_factor", "a positive number");
  if (r.get<std::string>("moe_router_activation_func") != "sigmoid")
    r.refuse("moe_router_activation_func", "\"sigmoid\"");
  if (r.find<bool>("use_grouped_topk").value_or(false)) {
    c.moe.groups = r.get_in("num_expert_group", 1, c.moe.experts);
    c.moe.topk_groups = r.get_in("topk_group", 1, c.moe.groups);
    if (c.moe.experts % c.moe.groups != 0) r.refuse("num_expert_group", "a divisor of num_experts");
  }
  c.moe.latent = r.find_in("routed_expert_hidden_size", 1, kMaxSize).value_or(0);
  c.moe.latent_norm = c.moe.latent > 0 && r.find<bool>("latent_moe_use_norm").value_or(false);
}

void read_activation(const JsonReader& r, ModelConfig& c) {
  const auto name = r.get<std::string>("hidden_act");
  if (name == "silu") return;
  if (name != "situ") r.refuse("hidden_act", "\"silu\" or \"situ\"");
  c.activation = HiddenActivation::situ;
  if (c.kind == ModelKind::kimi_k3) {
    c.situ_beta = get_float(r, "activation_situ_beta");
    c.situ_linear_beta = get_float(r, "activation_situ_linear_beta");
    if (!(c.situ_linear_beta > 0)) r.refuse("activation_situ_linear_beta", "a positive number");
  } else {  // absent beta means 1, absent linear beta leaves the up branch as it is
    c.situ_beta = find_float(r, "activation_situ_beta", 1);
    c.situ_linear_beta = find_float(r, "activation_situ_linear_beta", 0);
  }
  if (!(c.situ_beta > 0)) r.refuse("activation_situ_beta", "a positive number");
}

void read_text_model(const JsonReader& r, ModelConfig& c) {
  c.vocab_size = r.get_in("vocab_size", 1, kMaxSize);
  c.hidden_size = r.get_in("hidden_size", 1, kMaxSize);
  c.dense_width = r.get_in("intermediate_size", 1, kMaxSize);
  c.rms_norm_eps = get_float(r, "rms_norm_eps");
  if (!(c.rms_norm_eps > 0)) r.refuse("rms_norm_eps", "a positive number");
  const int64_t layers = r.get_in("num_hidden_layers", 1, kMaxLayers);
  read_kda(r, layers, c);
  read_mla(r, c);
  read_moe(r, layers, c);
  read_activation(r, c);
  c.attn_res_block = r.find_in("attn_res_block_size", 1, 1 << 16).value_or(0);
  c.max_positions = r.find_in("max_position_embeddings", 1, int64_t{1} << 40)
                        .value_or(r.find_in("model_max_length", 1, int64_t{1} << 40).value_or(0));
  if (r.find<int64_t>("num_nextn_predict_layers").value_or(0) != 0)
    r.refuse("num_nextn_predict_layers", "0 (MTP layers are not served)");
  if (r.find<std::string>("model_type").value_or("kimi_linear") != "kimi_linear")
    r.refuse("model_type", "\"kimi_linear\"");
}

// An id or a list of ids.
std::vector<int32_t> read_ids(const JsonReader& r, const char* field, int64_t vocab) {
  const auto kind = r.kind(field);
  if (!kind || *kind == Json::Kind::null) return {};
  std::vector<int64_t> wide;
  if (*kind == Json::Kind::array)
    wide = r.get<std::vector<int64_t>>(field);
  else
    wide = {r.get<int64_t>(field)};
  std::vector<int32_t> ids;
  for (int64_t id : wide) {
    if (id < 0 || id >= vocab) r.refuse(field, str("ids within 0..", vocab - 1));
    ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

void read_top_level(const JsonReader& r, ModelConfig& c) {
  c.tied_embeddings = r.find<bool>("tie_word_embeddings").value_or(false);
  c.eos_tokens = read_ids(r, "eos_token_id", c.vocab_size);
  const auto bos = read_ids(r, "bos_token_id", c.vocab_size);
  if (!bos.empty()) c.bos_token = bos.front();
  (void)r.raw("dtype");  // the header of each tensor says how it is stored
  (void)r.raw("torch_dtype");
}

}  // namespace

const char* to_string(ModelKind kind) {
  switch (kind) {
    case ModelKind::kimi_linear:
      return "Kimi-Linear";
    case ModelKind::kimi_k3:
      return "Kimi K3";
  }
  KDELTA_UNREACHABLE("model kind", kind);
}

ModelConfig read_config(const std::string& directory, Schemes schemes) {
  const auto root = JsonReader::open(directory + "/config.json");
  ModelConfig c;
  const auto architectures = root.get<std::vector<std::string>>("architectures");
  if (architectures.size() != 1) root.refuse("architectures", "one architecture");
  c.architecture = architectures.front();
  if (c.architecture == "KimiLinearForCausalLM") {
    c.kind = ModelKind::kimi_linear;
    read_text_model(root, c);
  } else if (c.architecture == "KimiK3ForConditionalGeneration") {
    c.kind = ModelKind::kimi_k3;
    const auto text = root.get<JsonReader>("text_config");
    read_text_model(text, c);
    c.quantization = read_quantization(text, schemes);
    for (const char* twin :
         {"architectures", "dtype", "tie_word_embeddings", "bos_token_id", "eos_token_id", "pad_token_id"})
      (void)text.raw(twin);
    (void)root.raw("model_type");
    c.weight_prefix = "language_model.";
    c.has_vision = root.kind("vision_config").has_value();
    (void)root.raw("vision_config");
  } else {
    root.refuse("architectures", "\"KimiK3ForConditionalGeneration\" or \"KimiLinearForCausalLM\"");
  }
  read_top_level(root, c);
  // Releases have it in the text part, copies of them at the top.
  if (const auto top = read_quantization(root, schemes);
      top && c.quantization && top->schemes != c.quantization->schemes)
    root.refuse("quantization_config", "none, or the config_groups of text_config.quantization_config");
  else if (top && !c.quantization)
    c.quantization = top;
  c.ignored = root.unread();
  return c;
}

}  // namespace kdelta
