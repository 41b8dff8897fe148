#include "tests/e2e/support.h"

#include <cstring>

#include "kdelta/core/check.h"
#include "kdelta/core/moves.h"

namespace kdelta::test {

TensorFile::TensorFile(const std::string& path) : file_(path) {
  for (TensorInfo& t : parse_safetensors(file_.bytes(), path)) {
    const std::string name = t.name;
    tensors_.emplace(name, std::move(t));
  }
}

const TensorInfo& TensorFile::info(const std::string& name) const {
  const auto it = tensors_.find(name);
  if (it == tensors_.end()) fail(ErrorCode::bad_file, file_.path(), ": no tensor ", name);
  return it->second;
}

std::vector<float> TensorFile::floats(const std::string& name) const {
  const TensorInfo& t = info(name);
  KDELTA_CHECK(t.dtype == DType::f32, name);
  std::vector<float> out(static_cast<size_t>(t.bytes / 4));
  std::memcpy(out.data(), file_.bytes().data() + t.begin, static_cast<size_t>(t.bytes));
  return out;
}

std::vector<int32_t> TensorFile::ints(const std::string& name) const {
  const TensorInfo& t = info(name);
  KDELTA_CHECK(t.dtype == DType::i32, name);
  std::vector<int32_t> out(static_cast<size_t>(t.bytes / 4));
  std::memcpy(out.data(), file_.bytes().data() + t.begin, static_cast<size_t>(t.bytes));
  return out;
}

Device& test_device() {
  static Device device;
  return device;
}

LoadedModel load_placed(const std::string& directory) {
  LoadedModel m = load_model(directory, LoadFormat::checkpoint);
  if (test_device().kind != DeviceKind::cpu) place_weights(m, test_device(), {}, {});
  return m;
}

void Recorder::on_tensor(std::string_view name, int layer, const AnyConstView& shown, Stream* stream) {
  std::vector<char> memory;
  const AnyConstView tensor = host_copy(stream, shown, memory);
  std::vector<float>& out = data_[{std::string(name), layer}];
  for (int64_t i = 0; i < tensor.dim(0); ++i) {
    for (int64_t j = 0; j < tensor.dim(1); ++j) {
      switch (tensor.dtype) {
        case DType::f32:
          out.push_back(tensor.at<const float>(i)[j]);
          break;
        case DType::bf16:
          out.push_back(to_float(tensor.at<const bf16>(i)[j]));
          break;
        case DType::i32:
          out.push_back(static_cast<float>(tensor.at<const int32_t>(i)[j]));
          break;
        default:
          KDELTA_UNREACHABLE("dtype", tensor.dtype);
      }
    }
  }
}

runtime::EngineConfig engine_config(DType activation) {
  runtime::EngineConfig c;
  c.device = test_device();
  c.options.exact = true;
  c.activation = activation;
  c.options.threads = 2;
  c.max_length = 1024;
  c.token_budget = 1024;
  return c;
}

namespace {

std::vector<float> slot_values(runtime::Engine& engine, const AnyView& there, int32_t slot) {
  std::vector<char> memory;
  const int64_t n = there.shape.numel() / there.dim(0);
  const AnyConstView pool = host_copy(engine.stream(), {there.data, there.dtype, {there.dim(0), n}}, memory);
  std::vector<float> out;
  for (int64_t i = 0; i < n; ++i)
    out.push_back(pool.dtype == DType::f32 ? pool.at<const float>(slot)[i] : to_float(pool.at<const bf16>(slot)[i]));
  return out;
}

}  // namespace

RunResult run_logits(const Model& model, const runtime::EngineConfig& base, const std::vector<int32_t>& ids,
                     int64_t chunk, TensorProbe* probe) {
  runtime::EngineConfig config = base;
  config.all_logits = true;
  if (chunk > 0) {
    config.token_budget = chunk;
    config.prefill_grid = 1;
  }
  runtime::Engine engine(model, config);
  engine.observe(nullptr, probe);
  const auto id = engine.submit(ids, {});
  RunResult result;
  int32_t slot = -1;
  std::string error;
  while (engine.step([&](const runtime::TokenEvent& e) {
    if (e.error != nullptr) error = *e.error;
  })) {
    if (!error.empty()) fail(ErrorCode::failed, error);
    const View<const float> logits = engine.last_logits();
    result.logits.insert(result.logits.end(), logits.data, logits.data + logits.shape.numel());
    if (const runtime::Request* r = engine.find(id); r != nullptr && !r->slots.empty()) slot = r->slots[0];
    if (slot < 0) slot = 1;  // the only request ran in one step: it had the first slot
  }
  result.state = slot_values(engine, engine.pool().views()[0][0], slot);
  if (engine.pool().views()[0].size() > 1) result.conv = slot_values(engine, engine.pool().views()[0][1], slot);
  return result;
}

std::vector<int32_t> run_greedy(const Model& model, const runtime::EngineConfig& config,
                                const std::vector<int32_t>& prompt, int64_t count, std::vector<float>* logits) {
  runtime::Engine engine(model, config);
  runtime::RequestOptions options;
  options.sampling.temperature = 0;
  options.max_tokens = count;
  engine.submit(prompt, options);
  std::vector<int32_t> tokens;
  bool more = true;
  while (more) {
    const size_t before = tokens.size();
    more = engine.step([&](const runtime::TokenEvent& e) {
      if (e.error != nullptr) fail(ErrorCode::failed, *e.error);
      tokens.push_back(e.token);
    });
    if (more && logits != nullptr && tokens.size() > before) {
      const View<const float> l = engine.last_logits();
      logits->insert(logits->end(), l.data, l.data + l.shape.numel());
    }
  }
  return tokens;
}

}  // namespace kdelta::test
