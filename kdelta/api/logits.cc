// Engine::logits and perplexity: every position's logits, for parity checks by anyone.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <list>
#include <map>

#include "kdelta/api/engine_impl.h"
#include "kdelta/core/check.h"

namespace kdelta {
namespace {

// Collects what --dump names under the tensor names of the goldens.
class Dump final : public TensorProbe {
 public:
  explicit Dump(const std::set<std::string>& wanted) : wanted_(wanted) {}

  void on_tensor(std::string_view name, int layer, const AnyConstView& tensor) override {
    const bool router = name.starts_with("router_");
    if (!wanted_.contains(router ? "router" : "layers")) return;
    Rows& rows = rows_[std::string(name)][layer];
    rows.width = tensor.dim(1);
    for (int64_t i = 0; i < tensor.dim(0); ++i) append(rows, tensor, i);
  }

  // [layers, T, width] per name, layers in ascending order.
  void finish(int64_t T) {
    for (auto& [name, layers] : rows_) {
      std::vector<char>& all = data_.emplace_back();
      const bool ints = name == "router_idx";
      int64_t width = 0;
      for (auto& [layer, rows] : layers) {
        width = rows.width;
        all.insert(all.end(), rows.bytes.begin(), rows.bytes.end());
      }
      tensors.push_back(
          {name, ints ? DType::i32 : DType::f32, {static_cast<int64_t>(layers.size()), T, width}, all.data()});
    }
  }

  std::vector<TensorToWrite> tensors;

 private:
  struct Rows {
    int64_t width = 0;
    std::vector<char> bytes;
  };

  static void append(Rows& rows, const AnyConstView& tensor, int64_t i) {
    for (int64_t j = 0; j < tensor.dim(1); ++j) {
      char four[4];
      if (tensor.dtype == DType::i32) {
        std::memcpy(four, tensor.at<const int32_t>(i) + j, 4);
      } else {
        const float x =
            tensor.dtype == DType::f32 ? tensor.at<const float>(i)[j] : to_float(tensor.at<const bf16>(i)[j]);
        std::memcpy(four, &x, 4);
      }
      rows.bytes.insert(rows.bytes.end(), four, four + 4);
    }
  }

  const std::set<std::string>& wanted_;
  std::map<std::string, std::map<int, Rows>> rows_;
  std::list<std::vector<char>> data_;
};

// One slot of every slot pool as fp32, before the request gives it back.
class StateDump {
 public:
  void take(runtime::Engine& engine, const std::vector<std::vector<StateSpec>>& specs, int32_t slot) {
    for (size_t l = 0; l < specs.size(); ++l) {
      for (size_t i = 0; i < specs[l].size(); ++i) {
        const StateSpec& s = specs[l][i];
        if (s.kind != StateKind::slot) continue;
        const AnyView pool = engine.pool().views()[l][i];
        std::vector<float>& values = data_.emplace_back();
        for (int64_t j = 0; j < s.shape.numel(); ++j)
          values.push_back(s.dtype == DType::f32 ? pool.at<float>(slot)[j] : to_float(pool.at<bf16>(slot)[j]));
        std::vector<int64_t> shape;
        for (int a = 0; a < s.shape.rank; ++a) shape.push_back(s.shape[a]);
        tensors.push_back({str("state.", l, ".", s.name), DType::f32, shape, values.data()});
      }
    }
  }
  std::vector<TensorToWrite> tensors;

 private:
  std::list<std::vector<float>> data_;
};

// -log softmax(row)[target]
double token_nll(const float* row, int64_t vocab, int32_t target) {
  const float top = *std::max_element(row, row + vocab);
  double sum = 0;
  for (int64_t i = 0; i < vocab; ++i) sum += std::exp(static_cast<double>(row[i] - top));
  return std::log(sum) + top - row[target];
}

}  // namespace

void Engine::logits(const std::vector<int32_t>& ids, const LogitsOptions& options) {
  for (const std::string& what : options.dump)
    if (what != "layers" && what != "router" && what != "state")
      fail(ErrorCode::invalid_argument, "dump: '", what, "', accepted: layers, router, state");
  runtime::Engine* engine = &impl_->running(true);
  std::unique_ptr<runtime::Engine> cut;  // another grid needs an engine of its own
  if (options.chunk > 0) {
    runtime::EngineConfig config = impl_->config;
    config.token_budget = options.chunk;
    config.prefill_grid = 1;
    cut = std::make_unique<runtime::Engine>(*impl_->model.model, config);
    engine = cut.get();
  }
  Dump dump(options.dump);
  StateDump states;
  const ProbeGuard probe(*engine, &dump);
  const runtime::RequestId id = engine->submit(ids, {});
  const RequestGuard guard(*engine, id);
  const auto T = static_cast<int64_t>(ids.size());
  std::vector<float> all;
  std::string error;
  // The request gives its slot back when it ends; nothing overwrites it before the next submit.
  int32_t slot = 1;
  while (engine->step([&](const runtime::TokenEvent& e) {
    if (e.error != nullptr) error = *e.error;
  })) {
    if (!error.empty()) break;
    if (options.cancel != nullptr && options.cancel->load()) fail(ErrorCode::failed, "logits: cancelled");
    const View<const float> l = engine->last_logits();
    all.insert(all.end(), l.data, l.data + l.shape.numel());
    if (const runtime::Request* r = engine->find(id); r != nullptr && !r->slots.empty()) slot = r->slots[0];
  }
  if (!error.empty()) fail(ErrorCode::failed, "logits: ", error);
  if (options.dump.contains("state"))
    states.take(
        *engine,
        impl_->model.model->states({.activation = impl_->config.activation, .recurrent = impl_->config.recurrent}),
        slot);
  dump.finish(T);
  std::vector<TensorToWrite> out = {{"logits", DType::f32, {T, vocab_size()}, all.data()},
                                    {"tokens", DType::i32, {T}, ids.data()}};
  out.insert(out.end(), dump.tensors.begin(), dump.tensors.end());
  out.insert(out.end(), states.tensors.begin(), states.tensors.end());
  write_safetensors(options.out, out);
}

Perplexity Engine::perplexity(const std::vector<int32_t>& ids, int64_t window,
                              const std::function<void(int64_t done, int64_t total)>& progress,
                              const std::atomic<bool>* cancel) {
  runtime::Engine& engine = impl_->running(true);
  if (window < 2) fail(ErrorCode::invalid_argument, "window: ", window, ", expected >= 2");
  const auto total = static_cast<int64_t>(ids.size());
  Perplexity p;
  for (int64_t begin = 0; begin + 1 < total; begin += window) {
    const int64_t end = std::min(total, begin + window);
    const RequestGuard guard(engine, engine.submit({ids.begin() + begin, ids.begin() + end}, {}));
    int64_t at = begin;
    std::string error;
    while (engine.step([&](const runtime::TokenEvent& e) {
      if (e.error != nullptr) error = *e.error;
    })) {
      if (!error.empty()) fail(ErrorCode::failed, "perplexity: ", error);
      if (cancel != nullptr && cancel->load()) fail(ErrorCode::failed, "perplexity: cancelled");
      const View<const float> l = engine.last_logits();
      for (int64_t i = 0; i < l.dim(0); ++i, ++at) {
        if (at + 1 >= end) continue;
        p.nll += token_nll(l.at(i), vocab_size(), ids[static_cast<size_t>(at + 1)]);
        ++p.tokens;
      }
    }
    if (progress) progress(end, total);
  }
  return p;
}

}  // namespace kdelta
