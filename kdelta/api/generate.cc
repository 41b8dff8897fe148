// Engine::generate and bench: one request through the runtime, text assembled on the way.
#include <chrono>
#include <random>

#include "kdelta/api/engine_impl.h"
#include "kdelta/core/check.h"
#include "kdelta/io/detokenizer.h"
#include "kdelta/io/stop_strings.h"

namespace kdelta {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

runtime::RequestOptions request_options(const GenerateOptions& o, const std::vector<int32_t>& end_ids) {
  runtime::RequestOptions r;
  r.sampling = {.temperature = o.temperature,
                .top_k = o.top_k,
                .top_p = o.top_p,
                .min_p = o.min_p,
                .repetition_penalty = o.repetition_penalty,
                .presence_penalty = o.presence_penalty,
                .frequency_penalty = o.frequency_penalty,
                .seed = o.seed};
  r.max_tokens = o.max_tokens;
  r.min_tokens = o.min_tokens;
  r.stop_ids = o.stop_ids;
  if (!o.ignore_eos) r.stop_ids.insert(r.stop_ids.end(), end_ids.begin(), end_ids.end());
  for (const auto& [token, bias] : o.logit_bias) r.bias.push_back({token, bias});
  r.top_logprobs = o.logprobs;
  return r;
}

// Collects one request's tokens and the text they become.
class Collector {
 public:
  Collector(const Tokenizer* tokenizer, const GenerateOptions& options, const OnDelta& on_delta, Generation& result)
      : options_(options), on_delta_(on_delta), result_(result), stops_(options.stop) {
    if (tokenizer != nullptr)
      detokenizer_.emplace(*tokenizer, options.show_specials ? Specials::show : Specials::skip);
    else if (!options.stop.empty())
      fail(ErrorCode::unsupported, "stop strings need a tokenizer");
  }

  void take(const runtime::TokenEvent& e) {
    if (e.token < 0) return;
    result_.tokens.push_back(e.token);
    if (e.sample->token >= 0 && options_.logprobs >= 0) {
      TokenLogprobs l{.token = e.token, .logprob = e.sample->logprob, .top = {}};
      for (const TokenLogprob& t : e.sample->top) l.top.emplace_back(t.token, t.logprob);
      result_.logprobs.push_back(std::move(l));
    }
    std::string text;
    // The id that ended the answer is no part of its text.
    if (detokenizer_ && e.finish != runtime::FinishReason::stop) text = stops_.feed(detokenizer_->feed(e.token));
    emit(text, {e.token});
  }

  bool stopped() const { return stops_.stopped(); }

  void finish() {
    if (!detokenizer_) return;
    std::string tail = stops_.feed(detokenizer_->finish());
    tail += stops_.finish();
    if (!tail.empty()) emit(tail, {});
  }

 private:
  void emit(const std::string& text, const std::vector<int32_t>& tokens) {
    result_.text += text;
    if (on_delta_) on_delta_(text, tokens);
  }

  const GenerateOptions& options_;
  const OnDelta& on_delta_;
  Generation& result_;
  std::optional<Detokenizer> detokenizer_;
  StopStrings stops_;
};

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
    engine.step([&](const runtime::TokenEvent& e) {
      if (e.error != nullptr) error = *e.error;
      collector.take(e);
      done = e.finish != runtime::FinishReason::none;
      if (done) g.finish_reason = to_string(e.finish);
    });
    if (!error.empty()) fail(ErrorCode::failed, "generation failed: ", error);
    if (first) {
      const runtime::Request* r = engine.find(id);
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
