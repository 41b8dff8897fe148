// Engine::generate_many and bench_concurrent: many requests through one running engine.
#include <algorithm>
#include <chrono>
#include <map>
#include <random>

#include "kdelta/api/collector.h"
#include "kdelta/api/roof/roof_time.h"

namespace kdelta {
namespace {

// Requests in the engine's hands, each with what came of it so far.
class Crowd {
 public:
  Crowd(runtime::Engine& engine, const Tokenizer* tokenizer, const std::vector<int32_t>& end_ids,
        const std::function<void(int64_t, Generation)>& done)
      : engine_(engine), tokenizer_(tokenizer), end_ids_(end_ids), done_(done) {}
  // Whatever leaves generate_many(), no request stays behind.
  ~Crowd() {
    for (const auto& [id, live] : live_) engine_.finish(id, runtime::FinishReason::cancelled);
  }
  Crowd(const Crowd&) = delete;
  Crowd& operator=(const Crowd&) = delete;

  size_t size() const { return live_.size(); }

  // One that cannot be served, for want of memory too, is told so; the others go on.
  void submit(int64_t number, GenerateTask task) {
    Generation refused;
    refused.prompt_tokens = std::ssize(task.prompt);
    refused.finish_reason = "error";
    try {
      return start(number, std::move(task));
    } catch (const std::bad_alloc&) {
      refused.error = runtime::kNoMemory;
    } catch (const Error& e) {
      refused.error = e.what();
    }
    done_(number, std::move(refused));
  }

  void take(const runtime::TokenEvent& e) {
    const auto it = live_.find(e.id);
    if (it == live_.end()) return;
    Live& l = *it->second;
    try {
      if (l.generation.tokens.empty()) note_reuse(e.id, l.generation);
      l.collector->take(e);
    } catch (const std::bad_alloc&) {  // its own text; the others go on
      l.generation.error = runtime::kNoMemory;
      engine_.finish(e.id, runtime::FinishReason::error);
      return end(it, "error");
    }
    if (e.error != nullptr) l.generation.error = *e.error;
    if (l.collector->stopped() && e.finish == runtime::FinishReason::none) {
      engine_.finish(e.id, runtime::FinishReason::stop);
      end(it, "stop");
    } else if (e.finish != runtime::FinishReason::none) {
      end(it, to_string(e.finish));
    }
  }

  void cancel() {
    while (!live_.empty()) {
      engine_.finish(live_.begin()->first, runtime::FinishReason::cancelled);
      end(live_.begin(), "cancelled");
    }
  }

 private:
  void start(int64_t number, GenerateTask task) {
    auto live = std::make_unique<Live>(number, std::move(task));
    live->collector.emplace(tokenizer_, live->task.options, none_, live->generation);
    const auto id = engine_.submit(live->task.prompt, request_options(live->task.options, end_ids_));
    try {
      live_.emplace(id, std::move(live));
    } catch (...) {
      engine_.finish(id, runtime::FinishReason::cancelled);  // nobody would hear of it
      throw;
    }
  }

  void note_reuse(runtime::RequestId id, Generation& g) const {
    const runtime::Request* r = engine_.find(id);
    if (r != nullptr) g.cached_tokens = r->reuse.tokens, g.cache_limit = to_string(r->reuse.limit);
  }

  struct Live {
    Live(int64_t n, GenerateTask t) : number(n), task(std::move(t)) {
      generation.prompt_tokens = static_cast<int64_t>(task.prompt.size());
    }
    int64_t number;
    GenerateTask task;
    Generation generation;
    std::optional<Collector> collector;
  };
  using Lives = std::map<runtime::RequestId, std::unique_ptr<Live>>;

  void end(Lives::iterator it, const char* reason) {
    const std::unique_ptr<Live> l = std::move(it->second);
    live_.erase(it);
    l->generation.finish_reason = reason;
    try {
      l->collector->finish();
    } catch (const std::bad_alloc&) {
      l->generation.finish_reason = "error";
      l->generation.error = runtime::kNoMemory;
    }
    done_(l->number, std::move(l->generation));
  }

  runtime::Engine& engine_;
  const Tokenizer* tokenizer_;
  const std::vector<int32_t>& end_ids_;
  const std::function<void(int64_t, Generation)>& done_;
  OnDelta none_;
  Lives live_;
};

}  // namespace

void Engine::generate_many(const std::function<bool(GenerateTask*)>& next,
                           const std::function<void(int64_t number, Generation generation)>& done,
                           const std::atomic<bool>* cancel) {
  runtime::Engine& engine = impl_->running(false);
  Crowd crowd(engine, impl_->tokenizer ? &*impl_->tokenizer : nullptr, impl_->end_ids, done);
  // A queue twice as long as what runs: a place that falls free is taken in the same step.
  const auto most = static_cast<size_t>(2 * impl_->config.max_sequences);
  bool more = true;
  for (int64_t number = 0; more || crowd.size() > 0;) {
    while (more && crowd.size() < most) {
      GenerateTask task;
      more = next(&task);
      if (more) crowd.submit(number++, std::move(task));
    }
    impl_->step([&](const runtime::TokenEvent& e) { crowd.take(e); });
    if (cancel != nullptr && cancel->load()) {
      crowd.cancel();
      return;
    }
  }
}

ConcurrentTimes Engine::bench_concurrent(int64_t concurrency, int64_t prompt, int64_t generate) {
  if (concurrency < 1) fail(ErrorCode::invalid_argument, "concurrency: ", concurrency, ", expected >= 1");
  runtime::Engine& engine = impl_->running(false);
  const bool cpu = engine.stream() == nullptr;
  if (cpu && !impl_->roofs) impl_->roofs.emplace(engine.team());
  // Weights are what every step goes through. The rates are the processor's: beside a CUDA device nothing is held
  // against them, and nobody watches, so that recorded steps run as they do for users.
  bench::RoofTime roof(cpu ? bench::sample_rates(*impl_->roofs, impl_->info.bytes) : bench::RoofRates{});
  const ProbeGuard guard(engine, nullptr, cpu ? &roof : nullptr);
  std::minstd_rand rng(1);
  int64_t left = concurrency;
  std::string error;
  const auto begin = std::chrono::steady_clock::now();
  generate_many(
      [&](GenerateTask* task) {
        if (left-- == 0) return false;
        task->prompt.resize(static_cast<size_t>(std::max<int64_t>(prompt, 1)));
        for (int32_t& id : task->prompt) id = static_cast<int32_t>(rng() % static_cast<uint64_t>(vocab_size()));
        task->options.temperature = 0;
        task->options.max_tokens = generate;
        task->options.ignore_eos = true;
        return true;
      },
      [&](int64_t, const Generation& g) {
        if (g.finish_reason == "error") error = g.error;
      });
  if (!error.empty()) fail(ErrorCode::failed, "bench: ", error);
  return {.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(),
          .roof_seconds = cpu ? roof.seconds() : 0};
}

}  // namespace kdelta
