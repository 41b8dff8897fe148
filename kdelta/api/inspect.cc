#include "kdelta/api/inspect.h"

#include <map>
#include <tuple>

#include "kdelta/core/error.h"

namespace kdelta {
namespace {

std::string text(const std::vector<int64_t>& shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) out += (i != 0 ? ", " : "") + std::to_string(shape[i]);
  return out + "]";
}

// Part of the model that a tensor belongs to: its name without layer and expert numbers and without the last component.
std::string group_of(const std::string& name, const std::string& prefix) {
  if (name.find(".experts.") != std::string::npos) return "routed experts";
  if (name.find("shared_experts") != std::string::npos) return "shared experts";
  if (name.find("block_sparse_moe") != std::string::npos) return "router and latent projections";
  if (name.find(".mlp.") != std::string::npos) return "dense feed-forward";
  if (name.find("self_attn.") != std::string::npos) return "attention";
  if (name.starts_with("vision_tower.") || name.starts_with("mm_projector.")) return "vision (ignored)";
  if (name == prefix + "lm_head.weight" || name.find("embed_tokens") != std::string::npos) return "vocabulary";
  return "norms and residual mixers";
}

std::string mixers(const ModelConfig& c) {
  std::string out;
  for (MixerKind m : c.mixer) out += m == MixerKind::kda ? 'K' : 'M';
  return out;
}

void describe_config(const ModelConfig& c, ModelInfo& info) {
  const auto add = [&](const char* name, const std::string& value) { info.fields.emplace_back(name, value); };
  add("layers", str(c.layers(), "  ", mixers(c), "  (K = KDA, M = MLA)"));
  add("hidden", str(c.hidden_size));
  add("vocabulary", str(c.vocab_size));
  add("KDA", str(c.kda.heads, " heads x ", c.kda.head_dim, ", convolution ", c.kda.conv_width, ", ",
                 c.kda.gate_lower_bound ? str("bounded gate ", *c.kda.gate_lower_bound) : std::string("softplus gate"),
                 ", ", c.kda.full_rank_gate ? "full-rank" : "low-rank", " output gate"));
  add("MLA",
      str(c.mla.heads, " heads, nope ", c.mla.nope, ", rope ", c.mla.rope, " (not rotated), value ", c.mla.value,
          ", latent ", c.mla.latent, ", query rank ", c.mla.query_rank, c.mla.output_gate ? ", output gate" : ""));
  if (c.moe.experts > 0)
    add("experts", str(c.moe.experts, ", ", c.moe.chosen, " per token, width ", c.moe.width,
                       c.moe.latent > 0 ? str(", latent ", c.moe.latent) : std::string(), ", shared ", c.moe.shared,
                       ", scaling ", c.moe.scaling));
  add("dense feed-forward", str(c.dense_width));
  add("activation",
      c.activation == HiddenActivation::situ ? str("SiTU (", c.situ_beta, ", ", c.situ_linear_beta, ")") : "SwiGLU");
  add("residual", c.attn_res_block > 0 ? str("attention residuals, block ", c.attn_res_block) : "ordinary");
  add("norm epsilon", str(c.rms_norm_eps));
  if (c.max_positions > 0) add("context", str(c.max_positions));
}

// What matrices of this precision take their inputs in, by the description: "MXFP8 floor", or "".
std::string inputs_of(const LoadedModel& m, const std::string& name, const std::string& precision) {
  if (m.config.quantization && precision == "int8")
    for (const QuantizationScheme& s : m.config.quantization->schemes)
      if (s.weights == Precision::int8 && s.int8_input) return "int8 by token";
  if (!m.config.quantization || !precision.starts_with("MX")) return {};
  return to_string(m.config.quantization->input_of(name.substr(0, name.rfind('.')),
                                                   precision == "MXFP4" ? Precision::mxfp4 : Precision::mxfp8));
}

// Codes and scales of one matrix count as its format, other tensors as their dtype.
std::string precision_of(const Checkpoint& c, const TensorInfo& t) {
  const std::string module = t.name.substr(0, t.name.rfind('.'));
  if (!t.name.ends_with(".weight_packed") && c.find(module + ".weight_scale") == nullptr)
    return std::string(dtype_name(t.dtype));
  if (c.find(module + ".weight_packed") != nullptr) return "MXFP4";
  const TensorInfo* weight = c.find(module + ".weight");
  const DType dtype = weight != nullptr ? weight->dtype : t.dtype;
  switch (dtype) {
    case DType::f8_e4m3:
      return "MXFP8";
    case DType::f8_e5m2:
      return "MXFP8 E5M2";
    case DType::i8:
      return "int8";
    default:
      return std::string(dtype_name(dtype));
  }
}

void describe_tensors(const LoadedModel& m, ModelInfo& info) {
  std::map<std::tuple<std::string, std::string, std::string>, ModelInfo::Group> groups;
  for (const TensorInfo& t : m.checkpoint->tensors()) {
    const std::string group = group_of(t.name, m.config.weight_prefix), dtype(dtype_name(t.dtype));
    const std::string precision = precision_of(*m.checkpoint, t);
    const std::string inputs = inputs_of(m, t.name, precision);
    ModelInfo::Group& g = groups[{group, precision, inputs}];
    g.name = group;
    g.dtype = precision;
    g.inputs = inputs;
    ++g.tensors;
    g.bytes += t.bytes;
    int64_t n = 1;
    for (int64_t d : t.shape) n *= d;
    if (t.name.ends_with("_packed"))
      info.parameters += 2 * n;
    else if (!t.name.ends_with("_scale"))
      info.parameters += n;
    const std::string& path = m.checkpoint->file_path(t.file);
    info.tensor_list.push_back({t.name, dtype, text(t.shape), path.substr(path.rfind('/') + 1), t.bytes});
  }
  for (auto& [key, g] : groups) info.groups.push_back(std::move(g));
  info.tensors = static_cast<int64_t>(m.checkpoint->tensors().size());
  info.files = m.checkpoint->file_count();
  info.bytes = m.checkpoint->total_bytes();
}

}  // namespace

ModelInfo describe_model(const LoadedModel& m) {
  ModelInfo info;
  info.kind = to_string(m.config.kind);
  info.architecture = m.config.architecture;
  info.notes = m.notes;
  describe_config(m.config, info);
  if (m.checkpoint)
    describe_tensors(m, info);
  else
    info.parameters = m.report.elements;
  return info;
}

std::optional<ModelInfo> describe_foreign(const std::string& directory) {
  LoadedModel m;
  m.config = read_config(directory, Schemes::all);
  if (!m.config.quantization || !m.config.quantization->names(Precision::int8)) return {};
  m.checkpoint = Checkpoint::open(directory);
  m.config.weight_prefix = find_weight_prefix(*m.checkpoint, m.config);
  ModelInfo info = describe_model(m);
  try {
    (void)read_config(directory);
  } catch (const Error& e) {
    info.refused = e.what();
  }
  return info;
}

}  // namespace kdelta
