// New weights for a running engine.
#include "kdelta/api/engine_impl.h"
#include "kdelta/api/inspect.h"
#include "kdelta/core/check.h"
#include "kdelta/io/safetensors.h"
#include "kdelta/model/identity.h"
#include "kdelta/model/unused.h"

namespace kdelta {
namespace {

// What must be equal for one model's weights to mean the same in another: all that the computation reads. The form of
// the gate is this engine's own choice; names, special tokens and fields that nobody reads change no weight.
ModelConfig computation_of(ModelConfig c) {
  c.kda.composed_gate = false;
  c.max_positions = 0;
  c.bos_token = -1;
  c.eos_tokens.clear();
  c.weight_prefix.clear();
  c.ignored.clear();
  c.has_vision = false;
  if (c.quantization) {
    c.quantization->ignored.clear();
    for (QuantizationScheme& s : c.quantization->schemes) s.group.clear(), s.targets.clear();
  }
  return c;
}

void check_same_model(const ModelConfig& running, const ModelConfig& given, const std::string& directory) {
  if (computation_of(running) == computation_of(given)) return;
  LoadedModel a, b;
  a.config = running;
  b.config = given;
  const auto was = describe_model(a).fields, is = describe_model(b).fields;
  std::string difference = "other switches than the running model's";
  if (computation_of(running).quantization != computation_of(given).quantization)
    difference = "another quantization_config than the running model's";
  for (size_t i = 0; i < was.size() && i < is.size(); ++i)
    if (was[i] != is[i]) {
      difference = str(is[i].first, " ", is[i].second, ", the running model has ", was[i].first, " ", was[i].second);
      break;
    }
  fail(ErrorCode::bad_file, directory, "/config.json: another model: ", difference);
}

}  // namespace

runtime::Engine& Engine::Impl::idle() const {
  if (!engine) fail(ErrorCode::invalid_argument, "reload: this engine was loaded with headers_only");
  if (options.dummy_weights) fail(ErrorCode::invalid_argument, "reload: this engine was loaded with dummy_weights");
  if (const int64_t n = engine->pending(); n > 0)
    fail(ErrorCode::invalid_argument, "reload: ", n, " requests wait or run, expected none");
  return *engine;
}

void Engine::reload(const std::string& directory) {
  runtime::Engine& engine = impl_->idle();
  LoadedModel& model = impl_->model;
  const ModelConfig config = read_config(directory);
  check_same_model(model.config, config, directory);
  const auto checkpoint = std::make_shared<const Checkpoint>(Checkpoint::open(directory));
  const std::string theirs = find_weight_prefix(*checkpoint, config), &ours = model.config.weight_prefix;
  WeightUpdate update(model.weights, WeightUpdate::Formats::kept);
  std::vector<std::string> unused;
  for (const TensorInfo& t : checkpoint->tensors()) {
    const std::string name = t.name.starts_with(theirs) ? ours + t.name.substr(theirs.size()) : t.name;
    if (!update.put(name, t.dtype, t.shape, checkpoint->data(t), checkpoint)) unused.push_back(t.name);
  }
  update.require_all();
  ModelConfig named = model.config;
  named.weight_prefix = theirs;
  (void)judge_unused(*checkpoint, named, model.model->shard(), unused, false);
  const uint64_t identity = model_identity(named, checkpoint.get(), unused);
  update.commit();
  engine.weights_changed(identity);
}

void Engine::reload(const std::vector<WeightTensor>& tensors) {
  runtime::Engine& engine = impl_->idle();
  WeightUpdate update(impl_->model.weights, WeightUpdate::Formats::kept);
  uint64_t identity = engine.config().model_id;
  for (const WeightTensor& t : tensors) {
    DType dtype;
    if (!parse_dtype(t.dtype, &dtype)) fail(ErrorCode::invalid_argument, "reload: ", t.name, ": dtype '", t.dtype, "'");
    if (!update.put(t.name, dtype, t.shape, t.data.get(), t.data))
      fail(ErrorCode::invalid_argument, "reload: ", t.name, ": no such tensor in this model");
    int64_t bytes = 0;
    (void)tensor_bytes(dtype, t.shape, &bytes);  // put() has refused what has no size
    identity =
        replaced_identity(identity, t.name, {static_cast<const uint8_t*>(t.data.get()), static_cast<size_t>(bytes)});
  }
  update.commit();
  engine.weights_changed(identity);
}

}  // namespace kdelta
