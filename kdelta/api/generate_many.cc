// Engine::generate_many and bench_concurrent: many requests through one running engine.
#include <algorithm>
#include <chrono>
#include <random>

#include "kdelta/api/crowd.h"
#include "kdelta/api/roof/roof_time.h"

namespace kdelta {

void Engine::generate_many(const std::function<bool(GenerateTask*)>& next,
                           const std::function<void(int64_t number, Generation generation)>& done,
                           const std::atomic<bool>* cancel) {
  (void)impl_->running(false);
  Crowd crowd(*impl_, done);
  // A queue twice as long as what runs: a place that falls free is taken in the same step.
  const auto most = static_cast<size_t>(2 * impl_->config.max_sequences);
  bool more = true;
  for (int64_t number = 0; more || crowd.size() > 0;) {
    while (more && crowd.size() < most) {
      GenerateTask task;
      more = next(&task);
      if (more) crowd.submit(number++, {.task = std::move(task)});
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
