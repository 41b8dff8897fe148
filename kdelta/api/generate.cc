// Engine::generate and bench: one request through the runtime, text assembled on the way.
#include <chrono>
#include <random>

#include "kdelta/api/collector.h"
#include "kdelta/core/check.h"

namespace kdelta {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

Generation Engine::generate(const std::vector<int32_t>& prompt, const GenerateOptions& options,
                            const OnDelta& on_delta) {
  runtime::Engine& engine = impl_->running(false);
  Generation g;
  g.prompt_tokens = static_cast<int64_t>(prompt.size());
  g.finish_reason = "length";
  Collector collector(impl_->tokenizer ? &*impl_->tokenizer : nullptr, options, on_delta, g);
  const runtime::RequestId id = engine.submit(prompt, request_options(options, impl_->end_ids));
  const RequestGuard guard(engine, id);
  std::string error;
  auto start = Clock::now();
  for (bool done = false; !done;) {
    const bool first = g.tokens.empty();
    impl_->step([&](const runtime::TokenEvent& e) {
      if (e.error != nullptr) error = *e.error;
      collector.take(e);
      done = e.finish != runtime::FinishReason::none;
      if (done) g.finish_reason = to_string(e.finish);
    });
    if (!error.empty()) fail(ErrorCode::failed, "generation failed: ", error);
    if (first) {
      const runtime::Request* r = engine.find(id);
      if (r != nullptr) g.cached_tokens = r->reuse.tokens;
      if (options.prefill_progress && r != nullptr)
        options.prefill_progress(std::min(r->computed, g.prompt_tokens), g.prompt_tokens);
      if (!g.tokens.empty()) g.prefill_seconds = seconds_since(start), start = Clock::now();
    }
    if (!done && collector.stopped()) done = true, g.finish_reason = "stop";
    if (!done && options.cancel != nullptr && options.cancel->load()) done = true, g.finish_reason = "cancelled";
  }
  g.decode_seconds = seconds_since(start);
  collector.finish();
  return g;
}

BenchTimes Engine::bench(int64_t prompt, int64_t generate, int64_t depth) {
  runtime::Engine& engine = impl_->running(false);
  if (depth % impl_->config.token_budget != 0)
    fail(ErrorCode::invalid_argument, "depth: ", depth, ", expected a multiple of the token budget ",
         impl_->config.token_budget);
  std::minstd_rand rng(1);
  std::vector<int32_t> ids(static_cast<size_t>(std::max<int64_t>(depth + prompt, 1)));
  for (int32_t& id : ids) id = static_cast<int32_t>(rng() % static_cast<uint64_t>(vocab_size()));
  runtime::RequestOptions options;
  options.sampling.temperature = 0;
  options.max_tokens = generate + 1;  // the prefill gives the first
  const runtime::RequestId id = engine.submit(ids, options);
  const RequestGuard guard(engine, id);
  BenchTimes times;
  int64_t tokens = 0;
  for (bool done = false; !done;) {
    const runtime::Request* r = engine.find(id);
    const bool counted = r->computed >= depth, decoding = tokens > 0;
    const auto start = Clock::now();
    engine.step([&](const runtime::TokenEvent& e) {
      if (e.error != nullptr) fail(ErrorCode::failed, *e.error);
      ++tokens;
      done = e.finish != runtime::FinishReason::none;
    });
    if (decoding)
      times.decode_seconds += seconds_since(start);
    else if (counted)
      times.prefill_seconds += seconds_since(start);
  }
  return times;
}

}  // namespace kdelta
