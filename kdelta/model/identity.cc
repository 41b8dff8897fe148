#include "kdelta/model/identity.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <set>

namespace kdelta {
namespace {

class Digest {
 public:
  void number(uint64_t value) {
    sum_ = (sum_ ^ value) * 0xff51afd7ed558ccdu;
    sum_ ^= sum_ >> 32;
  }
  void number(float value) { number(uint64_t{std::bit_cast<uint32_t>(value)}); }
  void bytes(const void* data, size_t size) {
    number(uint64_t{size});
    const auto* p = static_cast<const char*>(data);
    for (; size > 0; size -= std::min<size_t>(size, 8)) {
      uint64_t word = 0;
      std::memcpy(&word, p, std::min<size_t>(size, 8));
      number(word);
      p += std::min<size_t>(size, 8);
    }
  }
  uint64_t value() const { return sum_; }

 private:
  uint64_t sum_ = 0x6b64656c7461;
};

template <class... Numbers>
void numbers(Digest& d, Numbers... values) {
  (d.number(static_cast<uint64_t>(values)), ...);
}

// Everything of the config that a forward pass reads, as far as the file says it: how a gate is computed here
// (composed_gate) and how weights are stored (their dtypes tell) is left out; what their inputs are rounded to is not.
void add_config(Digest& d, const ModelConfig& c) {
  numbers(d, c.kind, c.vocab_size, c.hidden_size, c.mixer.size(), c.tied_embeddings, c.dense_width, c.activation,
          c.attn_res_block);
  for (const MixerKind m : c.mixer) numbers(d, m);
  numbers(d, c.kda.heads, c.kda.head_dim, c.kda.conv_width, c.kda.full_rank_gate, c.kda.gate_lower_bound.has_value());
  numbers(d, c.mla.heads, c.mla.nope, c.mla.rope, c.mla.value, c.mla.latent, c.mla.query_rank, c.mla.output_gate);
  numbers(d, c.moe.experts, c.moe.chosen, c.moe.width, c.moe.shared, c.moe.latent, c.moe.latent_norm, c.moe.renormalize,
          c.moe.groups, c.moe.topk_groups, c.moe.first_dense, c.moe.every);
  for (const float x :
       {c.rms_norm_eps, c.kda.gate_lower_bound.value_or(0), c.moe.scaling, c.situ_beta, c.situ_linear_beta})
    d.number(x);
  for (const QuantizationScheme& s : c.quantization ? c.quantization->schemes : std::vector<QuantizationScheme>{})
    if (s.input.quantised()) numbers(d, s.weights, s.input.format, s.input.rule);
}

// A name without its layer and expert numbers: "model.layers.#.block_sparse_moe.experts.#.w2.weight".
std::string kind_of(std::string_view name) {
  std::string kind;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    const bool number = !part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos;
    kind += number ? std::string_view("#") : part;
    kind += '.';
    begin = end + 1;
  }
  return kind;
}

void add_sample(Digest& d, const uint8_t* data, int64_t bytes) {
  constexpr int64_t kPiece = 64;
  if (bytes <= 2 * kPiece) return d.bytes(data, static_cast<size_t>(bytes));
  for (const int64_t third : {1, 2}) d.bytes(data + (bytes - kPiece) / 3 * third, kPiece);
}

}  // namespace

uint64_t model_identity(const ModelConfig& config, const Checkpoint* checkpoint, std::span<const std::string> unused) {
  constexpr size_t kSamples = 4096, kLeast = 32;
  Digest d;
  add_config(d, config);
  if (checkpoint == nullptr) return d.value();
  const std::set<std::string_view> strange(unused.begin(), unused.end());
  std::map<std::string, std::vector<const TensorInfo*>> kinds;
  for (const TensorInfo& t : checkpoint->tensors()) {
    std::string_view name = t.name;
    if (strange.contains(name)) continue;
    if (name.starts_with(config.weight_prefix)) name.remove_prefix(config.weight_prefix.size());
    d.bytes(name.data(), name.size());
    numbers(d, t.dtype, t.bytes);
    for (const int64_t n : t.shape)
      if (n != 1) numbers(d, n);  // [C, 1, W] is [C, W]
    kinds[kind_of(name)].push_back(&t);
  }
  for (const auto& [kind, members] : kinds) {
    const size_t count = std::min(members.size(), std::max(kLeast, kSamples / kinds.size()));
    for (size_t i = 0; i < count; ++i) {
      const TensorInfo& t = *members[i * members.size() / count];
      add_sample(d, checkpoint->data(t), t.bytes);
    }
  }
  return d.value();
}

uint64_t replaced_identity(uint64_t before, const std::string& name, std::span<const uint8_t> data) {
  Digest d;
  d.number(before);
  d.bytes(name.data(), name.size());
  d.bytes(data.data(), data.size());
  return d.value();
}

}  // namespace kdelta
