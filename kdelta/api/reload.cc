// New weights for a running engine.
#include "kdelta/model/reload.h"
#include "kdelta/api/engine_impl.h"
#include "kdelta/api/inspect.h"
#include "kdelta/core/check.h"

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
  engine.weights_changed(reload_weights(model, config, directory));
}

void Engine::reload(const std::vector<WeightTensor>& tensors) {
  runtime::Engine& engine = impl_->idle();
  std::vector<NewTensor> given;
  for (const WeightTensor& t : tensors) {
    NewTensor& n = given.emplace_back(NewTensor{.name = t.name, .shape = t.shape, .data = t.data});
    if (!parse_dtype(t.dtype, &n.dtype))
      fail(ErrorCode::invalid_argument, "reload: ", t.name, ": dtype '", t.dtype, "'");
  }
  engine.weights_changed(replace_weights(impl_->model, engine.config().model_id, given));
}

}  // namespace kdelta
