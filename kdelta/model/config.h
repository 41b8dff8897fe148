// Everything the engine knows about a model's shape, read from config.json. The reader refuses missing fields by name
// and lists the ones it does not use; no size has a default. Both released kinds are described by the same struct and
// its switches.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kdelta/model/quantization.h"

namespace kdelta {

enum class ModelKind : uint8_t { kimi_linear, kimi_k3 };
const char* to_string(ModelKind kind);

enum class MixerKind : uint8_t { kda, mla };
enum class HiddenActivation : uint8_t { silu, situ };

struct ModelConfig {
  ModelKind kind = ModelKind::kimi_linear;
  std::string architecture;
  int64_t vocab_size = 0, hidden_size = 0;
  std::vector<MixerKind> mixer;  // one per layer
  float rms_norm_eps = 0;
  bool tied_embeddings = false;
  int64_t max_positions = 0;  // 0: not stated

  struct Kda {
    int64_t heads = 0, head_dim = 0, conv_width = 0;
    bool full_rank_gate = false;
    std::optional<float> gate_lower_bound;  // absent: softplus gate
    bool composed_gate = false;             // not of the file: f_b f_a as one matrix
    bool operator==(const Kda&) const = default;
  } kda;
  struct Mla {
    int64_t heads = 0, nope = 0, rope = 0, value = 0, latent = 0, query_rank = 0;
    bool output_gate = false;
    bool operator==(const Mla&) const = default;
  } mla;
  struct Moe {
    int64_t experts = 0, chosen = 0, width = 0, shared = 0, latent = 0;
    bool latent_norm = false, renormalize = false;
    float scaling = 1;
    int64_t groups = 1, topk_groups = 1, first_dense = 0, every = 1;
    bool operator==(const Moe&) const = default;
  } moe;
  int64_t dense_width = 0;
  HiddenActivation activation = HiddenActivation::silu;
  float situ_beta = 1, situ_linear_beta = 0;
  int64_t attn_res_block = 0;  // 0: ordinary residual

  std::optional<Quantization> quantization;  // absent: nothing is said, so nothing may be quantised

  int32_t bos_token = -1;
  std::vector<int32_t> eos_tokens;
  std::string weight_prefix;         // "language_model." or ""
  std::vector<std::string> ignored;  // config fields that nothing reads
  bool has_vision = false;

  bool operator==(const ModelConfig&) const = default;
  int64_t layers() const { return static_cast<int64_t>(mixer.size()); }
  bool is_moe(int64_t layer) const { return moe.experts > 0 && layer >= moe.first_dense && layer % moe.every == 0; }
};

// Reads DIRECTORY/config.json. Throws Error(bad_file) naming the file, the field and what is accepted.
ModelConfig read_config(const std::string& directory, Schemes schemes = Schemes::computed);

}  // namespace kdelta
