// Engine::logits: every position's logits and what else was asked for, to a file, for parity checks by anyone. Rows go
// to the file as they are made: nothing here grows with the number of tokens.
#include <algorithm>
#include <cstring>
#include <map>

#include "kdelta/api/engine_impl.h"
#include "kdelta/core/check.h"
#include "kdelta/core/moves.h"
#include "kdelta/io/safetensors.h"

namespace kdelta {
namespace {

void append_row(const AnyConstView& tensor, int64_t i, std::vector<char>& out) {
  for (int64_t j = 0; j < tensor.dim(1); ++j) {
    char four[4];
    if (tensor.dtype == DType::i32) {
      std::memcpy(four, tensor.at<const int32_t>(i) + j, 4);
    } else {
      const float x = tensor.dtype == DType::f32 ? tensor.at<const float>(i)[j] : to_float(tensor.at<const bf16>(i)[j]);
      std::memcpy(four, &x, 4);
    }
    out.insert(out.end(), four, four + 4);
  }
}

// The file and its tensors under the names of the goldens: logits [T, V], tokens [T], then per dumped name
// [layers, T, width] with layers in ascending order, then states. Which names and layers a model has shows in its first
// step: that step's rows wait until the header can be written.
class LogitsFile final : public TensorProbe {
 public:
  LogitsFile(const LogitsOptions& options, const std::vector<int32_t>& ids, int64_t vocabulary)
      : options_(options), ids_(ids), vocabulary_(vocabulary) {}

  void on_tensor(std::string_view name, int layer, const AnyConstView& shown, Stream* stream) override {
    const bool router = name.starts_with("router_");
    if (!options_.dump.contains(router ? "router" : "layers")) return;
    std::vector<char> memory;
    const AnyConstView tensor = host_copy(stream, shown, memory);
    Rows& rows = dumped_[std::string(name)][layer];
    rows.width = 4 * tensor.dim(1);
    for (int64_t i = 0; i < tensor.dim(0); ++i) append_row(tensor, i, rows.waiting);
  }

  // Behind every step, with the logits of its tokens. `states`: what the file will hold of the state.
  void end_step(const View<const float>& logits, std::span<const TensorToWrite> states) {
    if (!writer_) begin(states);
    for (int64_t i = 0; i < logits.dim(0); ++i)
      writer_->write(0, (done_ + i) * vocabulary_ * 4, logits.at(i), vocabulary_ * 4);
    for (auto& [name, layers] : dumped_)
      for (auto& [layer, rows] : layers) flush(rows);
    done_ += logits.dim(0);
  }

  void finish(std::span<const TensorToWrite> states) {
    for (size_t i = 0; i < states.size(); ++i) {
      int64_t bytes = 4;
      for (int64_t n : states[i].shape) bytes *= n;
      writer_->write(first_state_ + i, 0, states[i].data, bytes);
    }
    writer_->commit();
  }

 private:
  struct Rows {
    int64_t width = 0;          // bytes
    std::vector<char> waiting;  // of this step
    size_t tensor = 0;
    int64_t first = 0;  // byte of the layer in its tensor
  };

  void begin(std::span<const TensorToWrite> states) {
    const auto T = static_cast<int64_t>(ids_.size());
    std::vector<TensorToWrite> tensors = {{"logits", DType::f32, {T, vocabulary_}, nullptr},
                                          {"tokens", DType::i32, {T}, nullptr}};
    for (auto& [name, layers] : dumped_) {
      int64_t count = 0, width = 0;
      for (auto& [layer, rows] : layers) {
        width = rows.width;
        rows.tensor = tensors.size();
        rows.first = count++ * T * width;
      }
      tensors.push_back({name, name == "router_idx" ? DType::i32 : DType::f32, {count, T, width / 4}, nullptr});
    }
    first_state_ = tensors.size();
    tensors.insert(tensors.end(), states.begin(), states.end());
    writer_.emplace(options_.out, tensors);
    writer_->write(1, 0, ids_.data(), T * 4);
  }

  void flush(Rows& rows) {
    KDELTA_CHECK(rows.tensor > 1, "a tensor that the first step did not have");
    writer_->write(rows.tensor, rows.first + done_ * rows.width, rows.waiting.data(), std::ssize(rows.waiting));
    rows.waiting.clear();
  }

  const LogitsOptions& options_;
  const std::vector<int32_t>& ids_;
  int64_t vocabulary_;
  std::map<std::string, std::map<int, Rows>> dumped_;
  std::optional<SafetensorsWriter> writer_;
  size_t first_state_ = 0;
  int64_t done_ = 0;  // tokens
};

// One slot of every slot pool as fp32.
class StateDump {
 public:
  explicit StateDump(const std::vector<std::vector<StateSpec>>& specs) : specs_(specs) {
    for (size_t l = 0; l < specs.size(); ++l)
      for (const StateSpec& s : specs[l]) {
        if (s.kind != StateKind::slot) continue;
        std::vector<int64_t> shape;
        for (int a = 0; a < s.shape.rank; ++a) shape.push_back(s.shape[a]);
        tensors.push_back({str("state.", l, ".", s.name), DType::f32, shape, nullptr});
      }
  }

  // Before another request gets the slot.
  void take(runtime::Engine& engine, int32_t slot) {
    for (size_t l = 0; l < specs_.size(); ++l)
      for (size_t i = 0; i < specs_[l].size(); ++i) {
        const StateSpec& s = specs_[l][i];
        if (s.kind != StateKind::slot) continue;
        std::vector<char> bytes(static_cast<size_t>(s.bytes()));
        copy_now(engine.stream(), bytes.data(),
                 static_cast<const char*>(engine.pool().views()[l][i].data) + slot * s.bytes(), s.bytes());
        const AnyConstView one(bytes.data(), s.dtype, {1, s.shape.numel()});
        std::vector<float> values;
        for (int64_t j = 0; j < s.shape.numel(); ++j)
          values.push_back(s.dtype == DType::f32 ? one.at<const float>(0)[j] : to_float(one.at<const bf16>(0)[j]));
        tensors[data_.size()].data = values.data();
        data_.push_back(std::move(values));
      }
  }
  std::vector<TensorToWrite> tensors;

 private:
  std::vector<std::vector<StateSpec>> specs_;
  std::vector<std::vector<float>> data_;
};

}  // namespace

void Engine::logits(const std::vector<int32_t>& ids, const LogitsOptions& options) {
  check_options(options, impl_->options.model);
  runtime::Engine* engine = &impl_->running(true);
  std::unique_ptr<runtime::Engine> cut;  // another grid needs an engine of its own
  if (options.chunk > 0) {
    runtime::EngineConfig config = impl_->config;
    config.token_budget = options.chunk;
    config.prefill_grid = 1;
    cut = std::make_unique<runtime::Engine>(*impl_->model.model, config);
    engine = cut.get();
  }
  LogitsFile file(options, ids, vocab_size());
  StateDump states(options.dump.contains("state") ? impl_->model.model->states({.activation = impl_->config.activation,
                                                                                .recurrent = impl_->config.recurrent})
                                                  : std::vector<std::vector<StateSpec>>());
  const ProbeGuard probe(*engine, &file);
  const runtime::RequestId id = engine->submit(ids, {});
  const RequestGuard guard(*engine, id);
  std::string error;
  // The request gives its slot back when it ends; nothing overwrites it before the next submit.
  int32_t slot = 1;
  while (engine->step([&](const runtime::TokenEvent& e) {
    if (e.error != nullptr) error = *e.error;
  })) {
    if (!error.empty()) fail(ErrorCode::failed, "logits: ", error);
    if (options.cancel != nullptr && options.cancel->load()) fail(ErrorCode::failed, "logits: cancelled");
    file.end_step(engine->last_logits(), states.tensors);
    if (const runtime::Request* r = engine->find(id); r != nullptr && !r->slots.empty()) slot = r->slots[0];
  }
  if (options.dump.contains("state")) states.take(*engine, slot);
  file.finish(states.tensors);
}

}  // namespace kdelta
