#include "tests/e2e/generated.h"

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <random>
#include <vector>

#include "kdelta/core/check.h"
#include "kdelta/io/checkpoint.h"
#include "kdelta/io/json.h"
#include "kdelta/model/model.h"

namespace kdelta::test {
namespace {

using Object = Json::Object;
using Array = Json::Array;

Json mx_group(int bits, bool activations) {
  const auto scheme = [](int n) {
    return Object{{"num_bits", n}, {"type", "float"}, {"strategy", "group"}, {"group_size", 32}, {"symmetric", true}};
  };
  return Object{{"targets", Array{"Linear"}},
                {"input_activations", activations ? Json(scheme(8)) : Json(nullptr)},
                {"weights", scheme(bits)}};
}

Object text_config(const Generated& g) {
  Object linear{{"kda_layers", Array{1, 3}},
                {"full_attn_layers", Array{2, 4}},
                {"num_heads", g.heads},
                {"head_dim", 16},
                {"short_conv_kernel_size", 4}};
  if (g.k3) linear.insert(linear.end(), {{"use_full_rank_gate", true}, {"gate_lower_bound", -5.0}});
  Object c{{"vocab_size", Generated::kVocabulary},
           {"hidden_size", Generated::kHidden},
           {"num_hidden_layers", Generated::kLayers},
           {"intermediate_size", 192},
           {"rms_norm_eps", 1e-5},
           {"linear_attn_config", std::move(linear)},
           {"num_attention_heads", g.heads},
           {"num_key_value_heads", g.heads},
           {"qk_nope_head_dim", 16},
           {"qk_rope_head_dim", 8},
           {"v_head_dim", 16},
           {"kv_lora_rank", 32},
           {"mla_use_nope", true},
           {"num_experts", Generated::kExperts},
           {"num_experts_per_token", 3},
           {"first_k_dense_replace", 1},
           {"moe_layer_freq", 1},
           {"moe_intermediate_size", g.mixed ? 1536 : 96},
           {"num_shared_experts", 1},
           {"moe_renormalize", true},
           {"routed_scaling_factor", 1.5},
           {"moe_router_activation_func", "sigmoid"},
           {"hidden_act", g.k3 ? "situ" : "silu"}};
  if (g.k3)
    c.insert(c.end(), {{"q_lora_rank", 24},
                       {"mla_use_output_gate", true},
                       {"routed_expert_hidden_size", 96},
                       {"latent_moe_use_norm", true},
                       {"activation_situ_beta", 4.0},
                       {"activation_situ_linear_beta", 25.0},
                       {"attn_res_block_size", 2}});
  if (g.mixed)
    c.push_back({"quantization_config",
                 Object{{"quant_method", "compressed-tensors"},
                        {"config_groups", Object{{"attention", mx_group(8, true)}, {"experts", mx_group(4, false)}}}}});
  return c;
}

void write_config(const Generated& g, const std::string& directory) {
  Object root = text_config(g);
  if (g.k3) root = Object{{"text_config", std::move(root)}};
  root.push_back({"architectures", Array{g.k3 ? "KimiK3ForConditionalGeneration" : "KimiLinearForCausalLM"}});
  root.push_back({"tie_word_embeddings", g.tied});
  std::ofstream(directory + "/config.json") << json_text(std::move(root));
}

// The tensors of a model, found through what it asks for.
class Writer {
 public:
  explicit Writer(const Generated& g)
      : g_(g), rng_(static_cast<uint64_t>(g.heads * 4 + (g.k3 ? 2 : 0) + (g.mixed ? 1 : 0))) {}

  void add(const PlacedSpec& placed) {
    for (size_t i = 0; i < placed.spec.names.size(); ++i) add(placed, placed.prefix + placed.spec.names[i], i);
  }
  void write(const std::string& path) const {
    std::vector<TensorToWrite> list;
    for (const Tensor& t : tensors_) list.push_back({t.name, t.dtype, t.shape, t.bytes.data()});
    write_safetensors(path, list);
  }

 private:
  struct Tensor {
    std::string name;
    DType dtype;
    std::vector<int64_t> shape;
    std::vector<uint8_t> bytes;
  };

  void add(const PlacedSpec& placed, const std::string& name, size_t part) {
    const WeightSpec& s = placed.spec;
    const auto parts = static_cast<int64_t>(s.names.size());
    switch (s.kind) {
      case WeightKind::matrix:
        return add_matrix(name, s.shape[0], s.shape[1]);
      case WeightKind::vector:
        // Norms are near one; everything else is near zero.
        return add_values(name + s.suffix, {s.shape[0]}, 0.2f, name.find("norm") != std::string::npos ? 1.0f : 0.0f);
      case WeightKind::head_scalar: {
        add_values(name + s.suffix, {s.shape[0] + 5}, 0.4f, 0.0f);
        const float padding = std::numeric_limits<float>::quiet_NaN();
        for (size_t i = 0; i < 5; ++i)
          std::memcpy(tensors_.back().bytes.data() + 4 * (static_cast<size_t>(s.shape[0]) + i), &padding, 4);
        return;
      }
      case WeightKind::conv_taps:
        return add_values(name + s.suffix, {s.shape[0] / parts, 1, s.shape[1]}, 0.5f, 0.0f);
      case WeightKind::score_row:
        // Scores of about one, as with a trained mixer. Four times that, and orders of sums alone move fp32 logits by
        // 1e-4 on one rank (avx512 against portable), in place of 1e-5 to 4e-5.
        return add_values(name + s.suffix, {s.shape[0]}, part == 0 ? 0.2f : 0.1f, part == 0 ? 1.0f : 0.0f);
      case WeightKind::product:
        break;
    }
    KDELTA_UNREACHABLE("weight kind", s.kind);
  }

  void add_matrix(const std::string& name, int64_t rows, int64_t cols) {
    const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
    if (g_.mixed && has(".experts.")) return add_mxfp4(name, rows, cols);
    // W8A8 in the first layer alone: what is quantised there has the same bits on any number of ranks. Deeper, another
    // order of sums moves a value across an edge of E4M3 now and then, and logits by up to 0.04.
    if (g_.mixed && (has("q_proj") || has("k_proj") || has("v_proj"))) {
      if (has("layers.0.")) return add_mxfp8(name, rows, cols);
      if (has("layers.2.")) return add_mxfp4(name, rows, cols);
    }
    Tensor& t = take(name + ".weight", DType::bf16, {rows, cols}, rows * cols * 2);
    const float scale = 1 / std::sqrt(static_cast<float>(cols));
    for (int64_t i = 0; i < rows * cols; ++i) {
      const bf16 x = to_bf16(scale * normal_(rng_));
      std::memcpy(t.bytes.data() + 2 * i, &x, 2);
    }
  }
  void add_mxfp4(const std::string& name, int64_t rows, int64_t cols) {
    for (uint8_t& b : take(name + ".weight_packed", DType::u8, {rows, cols / 2}, rows * cols / 2).bytes)
      b = static_cast<uint8_t>(rng_());
    add_scales(name, rows, cols, 2.7);
  }
  void add_mxfp8(const std::string& name, int64_t rows, int64_t cols) {
    // E4M3 from 0.25 to 3.75, either sign.
    for (uint8_t& b : take(name + ".weight", DType::f8_e4m3, {rows, cols}, rows * cols).bytes)
      b = static_cast<uint8_t>((rng_() & 0x80) | (0x28 + rng_() % 32));
    add_scales(name, rows, cols, 1.6);
  }
  // So that rows of codes with that rms keep the size of their input.
  void add_scales(const std::string& name, int64_t rows, int64_t cols, double rms) {
    const int scale = 127 - static_cast<int>(std::lround(std::log2(rms * std::sqrt(static_cast<double>(cols)))));
    for (uint8_t& b : take(name + ".weight_scale", DType::u8, {rows, cols / 32}, rows * cols / 32).bytes)
      b = static_cast<uint8_t>(scale - static_cast<int>(rng_() % 2));
  }
  void add_values(const std::string& name, std::vector<int64_t> shape, float scale, float center) {
    int64_t n = 1;
    for (const int64_t d : shape) n *= d;
    Tensor& t = take(name, DType::f32, std::move(shape), 4 * n);
    for (int64_t i = 0; i < n; ++i) {
      const float x = center + scale * normal_(rng_);
      std::memcpy(t.bytes.data() + 4 * i, &x, 4);
    }
  }
  Tensor& take(const std::string& name, DType dtype, std::vector<int64_t> shape, int64_t bytes) {
    tensors_.push_back({name, dtype, std::move(shape), std::vector<uint8_t>(static_cast<size_t>(bytes))});
    return tensors_.back();
  }

  Generated g_;
  std::mt19937_64 rng_;
  std::normal_distribution<float> normal_;
  std::vector<Tensor> tensors_;
};

}  // namespace

void write_checkpoint(const Generated& g, const std::string& directory) {
  write_config(g, directory);
  const auto model = make_model(read_config(directory));
  Writer writer(g);
  for (const PlacedSpec& placed : model->weights()) writer.add(placed);
  writer.write(directory + "/model.safetensors");
}

}  // namespace kdelta::test
