// From a request's events to its Generation: options in, tokens and text out.
#pragma once

#include "kdelta/api/engine_impl.h"
#include "kdelta/core/check.h"
#include "kdelta/io/detokenizer.h"
#include "kdelta/io/stop_strings.h"

namespace kdelta {

inline runtime::RequestOptions request_options(const GenerateOptions& o, const std::vector<int32_t>& end_ids) {
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
    if (e.token < 0 || stopped()) return;  // a step with drafts may bring tokens behind a stop string
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

  // What was said elsewhere: it decides how the text goes on, and is heard no more.
  void skip(const std::vector<int32_t>& said) {
    if (!detokenizer_) return;
    for (const int32_t token : said) (void)stops_.feed(detokenizer_->feed(token));
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

}  // namespace kdelta
