#include "kdelta/model/load.h"

#include <algorithm>

#include "kdelta/core/check.h"
#include "kdelta/model/compose.h"
#include "kdelta/model/dummy.h"
#include "kdelta/model/identity.h"
#include "kdelta/model/unused.h"

namespace kdelta {
namespace {

constexpr uint64_t kDummySeed = 1;

// One line: many fields of a release's config say nothing about the computation.
void note_fields(LoadedModel& m) {
  if (m.config.ignored.empty()) return;
  std::string fields;
  for (const std::string& field : m.config.ignored) fields += (fields.empty() ? "" : ", ") + field;
  m.notes.push_back("config fields not used: " + fields);
}

// No tensor tells the two decays apart, and every released Kimi K3 has the bounded one.
void note_decay(LoadedModel& m) {
  if (m.config.kind == ModelKind::kimi_k3 && !m.config.kda.gate_lower_bound)
    m.notes.push_back("text_config.linear_attn_config.gate_lower_bound is absent: the decay is softplus");
}

std::vector<StoredModule> stored_modules(const Checkpoint& checkpoint, const std::vector<PlacedSpec>& specs) {
  std::vector<StoredModule> stored;
  for (const PlacedSpec& placed : specs)
    for (const std::string& name : placed.spec.names) {
      const std::string module = placed.prefix + name, weight = module + placed.spec.suffix;
      const TensorInfo* t = checkpoint.find(weight);
      if (checkpoint.find(weight + "_packed") != nullptr)
        stored.push_back({module, Precision::mxfp4});
      else if (t != nullptr && (t->dtype == DType::f8_e4m3 || t->dtype == DType::f8_e5m2))
        stored.push_back({module, Precision::mxfp8, t->dtype});
    }
  return stored;
}

// What is stored against what the config says of it.
void compare_description(LoadedModel& m, const std::vector<PlacedSpec>& specs) {
  if (!m.checkpoint || !m.config.quantization) return;
  const std::vector<StoredModule> stored = stored_modules(*m.checkpoint, specs);
  m.config.quantization->check_codes(stored);
  for (std::string& note : m.config.quantization->doubts(stored)) m.notes.push_back(std::move(note));
}

// The name of a factor of a decay gate that is quantised; empty when none is.
std::string quantised_factor(const LoadedModel& m) {
  for (int64_t l = 0; l < m.config.layers() && m.checkpoint; ++l) {
    if (m.config.mixer[static_cast<size_t>(l)] != MixerKind::kda) continue;
    for (const char* factor : {"f_a_proj", "f_b_proj"}) {
      const std::string name = str(m.config.weight_prefix, "model.layers.", l, ".self_attn.", factor, ".weight");
      const TensorInfo* t = m.checkpoint->find(name);
      if (t == nullptr ? m.checkpoint->find(name + "_packed") != nullptr
                       : refuse_composition(t->dtype, t->dtype) != nullptr)
        return name;
    }
  }
  return {};
}

GateDecision decide(const LoadedModel& m, const LoadChoices& choices) {
  const ModelConfig::Kda& c = m.config.kda;
  if (const std::string name = quantised_factor(m); !name.empty()) return {false, name + " is quantised"};
  return decide_gate(gate_table(), {.isa = std::min(choices.options.isa, detect_isa()),
                                    .T = choices.decode_rows,
                                    .D = m.config.hidden_size,
                                    .P = c.heads / choices.shard.ranks * c.head_dim,
                                    .R = c.head_dim});
}

void choose_gate_form(LoadedModel& m, const LoadChoices& choices) {
  bool& composed = m.config.kda.composed_gate;
  switch (choices.kda_gate) {
    case GateChoice::factored:
      return;
    case GateChoice::composed:
      composed = true;
      return;
    case GateChoice::automatic: {
      const GateDecision d = decide(m, choices);
      composed = d.composed;
      m.notes.push_back(str("KDA gate: ", composed ? "composed" : "factored", ", ", d.why));
      return;
    }
  }
  KDELTA_UNREACHABLE("gate choice", choices.kda_gate);
}

}  // namespace

std::string find_weight_prefix(const Checkpoint& checkpoint, const ModelConfig& config) {
  const std::string probe = "model.embed_tokens.weight";
  for (const std::string& prefix : {config.weight_prefix, std::string(), std::string("language_model.")})
    for (const char* ending : {"", "_packed"})  // packed it is refused later, by its own name
      if (checkpoint.find(prefix + probe + ending) != nullptr) return prefix;
  fail(ErrorCode::bad_file, checkpoint.directory(), ": tensor ", config.weight_prefix, probe, ": missing");
}

LoadedModel load_model(const std::string& directory, LoadFormat format, const LoadChoices& choices) {
  LoadedModel m;
  m.config = read_config(directory);
  note_fields(m);
  note_decay(m);
  if (format == LoadFormat::checkpoint || format == LoadFormat::headers) {
    m.checkpoint = Checkpoint::open(directory);
    for (const std::string& note : m.checkpoint->notes()) m.notes.push_back(note);
    m.config.weight_prefix = find_weight_prefix(*m.checkpoint, m.config);
  }
  choose_gate_form(m, choices);
  m.model = make_model(m.config, choices.shard);
  const std::vector<PlacedSpec> specs = m.model->weights();
  const BindOptions options{.shard = choices.shard,
                            .options = choices.options,
                            .quantization = m.config.quantization.value_or(Quantization{}),
                            .compose_later = choices.compose_later};
  switch (format) {
    case LoadFormat::checkpoint:
      m.weights = BoundWeights::bind(*m.checkpoint, specs, &m.report, options);
      break;
    case LoadFormat::headers:
      m.weights = BoundWeights::shapes(*m.checkpoint, specs, &m.report, options);
      break;
    case LoadFormat::dummy:
      m.weights = BoundWeights::dummy(specs, kDummySeed, &m.report, options);
      break;
    case LoadFormat::config_only:
      m.weights = BoundWeights::dummy_shapes(specs, &m.report, options);
      break;
  }
  compare_description(m, specs);
  drop_other_ranks(m.config, choices.shard, &m.report.unused);
  if (m.checkpoint)
    for (std::string& note :
         judge_unused(*m.checkpoint, m.config, choices.shard, m.report.unused, format == LoadFormat::headers))
      m.notes.push_back(std::move(note));
  if (format == LoadFormat::checkpoint || format == LoadFormat::dummy)
    m.identity = model_identity(m.config, m.checkpoint ? &*m.checkpoint : nullptr, m.report.unused);
  return m;
}

void place_weights(LoadedModel& m, Device device, const LoadChoices& choices, const DeviceWeights::Progress& progress) {
  if (m.checkpoint) {
    m.on_device = DeviceWeights(device, m.model->weights(), choices.options.threads, progress);
    return;
  }
  m.on_device = DeviceWeights(device, m.model->weights(), [&](const PlacedSpec& placed) {
    return dummy_values(placed, kDummySeed, choices.shard);
  });
  m.identity = model_identity(m.config, nullptr, m.report.unused);
}

}  // namespace kdelta
