// Engine::generate, its two halves start and resume, and bench: one request through the runtime, text assembled on the
// way.
#include <algorithm>
#include <chrono>
#include <limits>
#include <random>

#include "kdelta/api/collector.h"
#include "kdelta/api/state_file.h"
#include "kdelta/core/check.h"

namespace kdelta {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

bool Engine::Impl::follow(runtime::RequestId id, const GenerateOptions& asked, int64_t most, Collector& collector,
                          Generation& g) {
  std::string error;
  auto start = Clock::now();
  bool done = collector.stopped();
  if (done) g.finish_reason = "stop";
  while (!done && static_cast<int64_t>(g.tokens.size()) < most) {
    const bool first = g.tokens.empty();
    step([&](const runtime::TokenEvent& e) {
      if (e.error != nullptr) error = *e.error;
      collector.take(e);
      done = e.finish != runtime::FinishReason::none;
      if (done) g.finish_reason = to_string(e.finish);
    });
    if (!error.empty()) fail(ErrorCode::failed, "generation failed: ", error);
    if (first) {
      const runtime::Request* r = engine->find(id);
      if (r != nullptr) g.cached_tokens = r->reuse.tokens, g.cache_limit = to_string(r->reuse.limit);
      if (asked.prefill_progress && r != nullptr)
        asked.prefill_progress(std::min(r->computed, g.prompt_tokens), g.prompt_tokens);
      if (!g.tokens.empty()) g.prefill_seconds = seconds_since(start), start = Clock::now();
    }
    if (!done && collector.stopped()) done = true, g.finish_reason = "stop";
    if (!done && asked.cancel != nullptr && asked.cancel->load()) done = true, g.finish_reason = "cancelled";
  }
  g.decode_seconds = seconds_since(start);
  if (done) collector.finish();
  return done;
}

Started Engine::start(const std::vector<int32_t>& prompt, const GenerateOptions& options, int64_t tokens,
                      const OnDelta& on_delta) {
  if (tokens < 1) fail(ErrorCode::invalid_argument, "tokens: ", tokens, ", expected >= 1");
  if (options.constraint && tokens != std::numeric_limits<int64_t>::max())
    fail(ErrorCode::invalid_argument, "constraint: a request with one cannot be handed out");
  runtime::Engine& engine = impl_->running(false);
  Started s;
  s.generation.prompt_tokens = static_cast<int64_t>(prompt.size());
  Collector collector({impl_->tokenizer ? &*impl_->tokenizer : nullptr, options}, options, text_reader(on_delta),
                      s.generation);
  const runtime::RequestId id =
      engine.submit(prompt, request_options(options, impl_->end_ids, impl_->constraints.get()));
  const RequestGuard guard(engine, id);
  if (!impl_->follow(id, options, tokens, collector, s.generation)) s.state = encode_state(engine.export_state(id));
  return s;
}

void Engine::check(const GenerateTask& task) const {
  check_options(task.options);
  impl_->running(false).check(task.prompt, request_options(task.options, impl_->end_ids, impl_->constraints.get()));
}

Generation Engine::generate(const std::vector<int32_t>& prompt, const GenerateOptions& options,
                            const OnDelta& on_delta) {
  return start(prompt, options, std::numeric_limits<int64_t>::max(), on_delta).generation;
}

namespace {

// What the runtime refuses of a state is said of where it came from.
template <class F>
auto of_source(const std::string& source, F f) {
  try {
    return f();
  } catch (const Error& e) {
    const std::string what = e.what(), name = "state: ";
    fail(e.code(), source, ": ", what.starts_with(name) ? what.substr(name.size()) : what);
  }
}

}  // namespace

Generation Engine::resume(std::span<const char> state, const ResumeOptions& options, const OnDelta& on_delta,
                          const std::string& source) {
  runtime::Engine& engine = impl_->running(false);
  const runtime::StateImage image = decode_state(state, source);
  GenerateOptions o;
  o.stop = options.stop;
  o.show_specials = options.show_specials;
  o.cancel = options.cancel;
  o.logprobs = image.options.top_logprobs;
  Generation g;
  g.prompt_tokens = static_cast<int64_t>(image.prompt.size());
  Collector collector({impl_->tokenizer ? &*impl_->tokenizer : nullptr, o}, o, text_reader(on_delta), g);
  collector.skip(image.output);
  const runtime::RequestId id = of_source(source, [&] { return engine.import_state(image); });
  const RequestGuard guard(engine, id);
  impl_->follow(id, o, std::numeric_limits<int64_t>::max(), collector, g);
  return g;
}

std::vector<char> Engine::save_prefix(const std::vector<int32_t>& prompt) const {
  const runtime::StateImage image = impl_->running(false).export_prefix(prompt);
  return image.computed == 0 ? std::vector<char>() : encode_state(image);
}

LoadedPrefix Engine::load_prefix(std::span<const char> state, const std::string& source,
                                 const std::vector<int32_t>* prompt) {
  runtime::Engine& engine = impl_->running(false);
  const runtime::StateImage image = decode_state(state, source);
  LoadedPrefix out{.tokens = image.computed};
  const auto& begin = image.prompt;
  out.foreign =
      prompt != nullptr && (prompt->size() < begin.size() || !std::equal(begin.begin(), begin.end(), prompt->begin()));
  if (out.foreign) {
    of_source(source, [&] { engine.check_prefix(image); });
    return out;
  }
  if (of_source(source, [&] { return engine.import_prefix(image); })) out.kept = image.computed;
  if (image.arithmetic != impl_->config.arithmetic)
    out.computed_otherwise = str("computed with ", image.arithmetic, ", here it is ", impl_->config.arithmetic);
  return out;
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
