// quantization_config of a quantised checkpoint, in the words of compressed-tensors as the K3 release uses them.
#include <algorithm>

#include "kdelta/api/quantize_plan.h"
#include "kdelta/core/check.h"

namespace kdelta {
namespace {

using Object = Json::Object;
using Array = Json::Array;

// Fields of an argument object, all of them: readers of this format refuse unknown and some miss absent ones.
Json arguments(int64_t bits, bool dynamic, const std::string& rule) {
  Object kwargs;
  if (!rule.empty()) kwargs.push_back({"scale_rule", rule});
  return Object{{"actorder", nullptr},
                {"block_structure", nullptr},
                {"dynamic", dynamic},
                {"group_size", 32},
                {"num_bits", bits},
                {"observer", dynamic ? Json(nullptr) : Json("minmax")},
                {"observer_kwargs", std::move(kwargs)},
                {"scale_dtype", "torch.uint8"},
                {"strategy", "group"},
                {"symmetric", true},
                {"type", "float"},
                {"zp_dtype", nullptr}};
}

// int8: symmetric, weights by output row, activations by token.
Json int8_arguments(bool dynamic) {
  return Object{{"actorder", nullptr},
                {"block_structure", nullptr},
                {"dynamic", dynamic},
                {"group_size", nullptr},
                {"num_bits", 8},
                {"observer", dynamic ? Json(nullptr) : Json("minmax")},
                {"observer_kwargs", Object{}},
                {"strategy", dynamic ? "token" : "channel"},
                {"symmetric", true},
                {"type", "int"}};
}

const char* format_text(WeightFormat format) {
  switch (format) {
    case WeightFormat::mxfp8:
      return "mxfp8-quantized";
    case WeightFormat::mxfp4:
      return "mxfp4-pack-quantized";
    case WeightFormat::int8:
      return "int-quantized";
    case WeightFormat::keep:
      break;
  }
  KDELTA_UNREACHABLE("weight format", format);
}

// How a group's matrices lie in the result.
struct Stored {
  WeightFormat format = WeightFormat::keep;
  bool ours = false;  // quantised now, not copied: the rule is known
};

// Experts in MXFP4 are weights only, as the release declares them; everything else takes MXFP8 activations.
Json group(const Stored& stored, bool activations, Array targets, const QuantizeSettings& s) {
  const WeightFormat format = stored.format;
  if (format == WeightFormat::int8)
    return Object{{"format", format_text(format)},
                  {"input_activations", int8_arguments(true)},
                  {"output_activations", nullptr},
                  {"targets", std::move(targets)},
                  {"weights", int8_arguments(false)}};
  return Object{
      {"format", format_text(format)},
      {"input_activations", activations ? arguments(8, true, s.activation_rule_name) : Json(nullptr)},
      {"output_activations", nullptr},
      {"targets", std::move(targets)},
      {"weights", arguments(format == WeightFormat::mxfp8 ? 8 : 4, false, stored.ours ? s.weight_rule_name : "")}};
}

std::string layers_pattern(const ModelConfig& c, MixerKind kind) {
  std::string out;
  for (int64_t l = 0; l < c.layers(); ++l)
    if (c.mixer[static_cast<size_t>(l)] == kind) out += str(out.empty() ? "" : "|", l);
  return str("(", out, ")");
}

Array ignored(const ModelConfig& c, bool qkv, bool experts) {
  Array out;
  if (!qkv) {
    out.push_back("re:.*self_attn.*");
  } else {
    const std::string mla = layers_pattern(c, MixerKind::mla);
    if (mla != "()") out.push_back("re:.*layers\\." + mla + "\\.self_attn\\..*");
    out.push_back("re:.*self_attn\\.(f_a|f_b|g|g_a|g_b|b|o)_proj$");
  }
  if (!experts) out.push_back("re:.*block_sparse_moe\\.experts\\..*");
  for (const char* pattern :
       {"re:.*shared_experts.*", "re:.*block_sparse_moe\\.gate$", "re:.*routed_expert_(down|up)_proj$",
        "re:.*_res_proj$", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*", "re:.*lm_head.*", "re:.*vision_tower.*",
        "re:.*mm_projector.*"})
    out.push_back(pattern);
  return out;
}

Stored stored_in(const QuantizePlan& plan, QuantGroup group) {
  for (const auto& file : plan.files)
    for (const PlannedTensor& p : file) {
      if (p.group != group) continue;
      if (const auto format = stored_format(p)) return {*format, p.format != WeightFormat::keep};
    }
  return {};
}

}  // namespace

Json quantized_config(Json config, const ModelConfig& model, const QuantizePlan& plan, const QuantizeSettings& s) {
  const Stored qkv = stored_in(plan, QuantGroup::qkv), experts = stored_in(plan, QuantGroup::experts);
  const bool has_qkv = qkv.format != WeightFormat::keep, has_experts = experts.format != WeightFormat::keep;
  Object groups;
  if (has_experts) groups.push_back({"group_0", group(experts, experts.format == WeightFormat::mxfp8, {"Linear"}, s)});
  if (has_qkv)
    groups.push_back(
        {str("group_", groups.size()),
         group(qkv, true, {"re:.*layers\\." + layers_pattern(model, MixerKind::kda) + "\\.self_attn\\.(q|k|v)_proj$"},
               s)});
  const bool mixed = groups.size() == 2;
  const Json text = Object{{"config_groups", groups},
                           {"format", mixed ? Json("mixed-precision") : *groups.front().value.find("format")},
                           {"global_compression_ratio", nullptr},
                           {"ignore", ignored(model, has_qkv, has_experts)},
                           {"kv_cache_scheme", nullptr},
                           {"quant_method", "compressed-tensors"},
                           {"quantization_status", "compressed"}};
  std::erase_if(config.object(), [](const JsonMember& m) { return m.key == "quantization_config"; });
  if (model.kind != ModelKind::kimi_k3) {
    config.set("quantization_config", text);
    return config;
  }
  Json inner = *config.find("text_config");
  inner.set("quantization_config", text);
  config.set("text_config", std::move(inner));
  return config;
}

}  // namespace kdelta
