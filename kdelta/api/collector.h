// From a request's events to its Generation: options in, tokens and text out.
#pragma once

#include "kdelta/api/answer_text.h"
#include "kdelta/api/engine_impl.h"

namespace kdelta {

// `constraints`: null when there is no tokenizer. Any number of threads may call this.
inline runtime::RequestOptions request_options(const GenerateOptions& o, const std::vector<int32_t>& end_ids,
                                               Constraints* constraints) {
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
  if (o.constraint && constraints == nullptr) fail(ErrorCode::unsupported, "a constraint needs a tokenizer");
  if (o.constraint) r.constraint = constraints->make(*o.constraint, r.stop_ids);
  return r;
}

// What a token adds to an answer; of the end of an answer the token is -1.
using OnParts = std::function<void(std::vector<AnswerPart>& parts, int32_t token)>;

// Collects one request's tokens and what they become: in the generation, and piece by piece.
class Collector {
 public:
  // Everything must outlive this.
  Collector(AnswerText text, const GenerateOptions& options, OnParts on_parts, Generation& result)
      : options_(options), on_parts_(std::move(on_parts)), result_(result), text_(std::move(text)) {}

  void take(const runtime::TokenEvent& e) {
    if (e.token < 0 || stopped()) return;  // a step with drafts may bring tokens behind a stop string
    result_.tokens.push_back(e.token);
    if (e.sample->token >= 0 && options_.logprobs >= 0) {
      TokenLogprobs l{.token = e.token, .logprob = e.sample->logprob, .top = {}};
      for (const TokenLogprob& t : e.sample->top) l.top.emplace_back(t.token, t.logprob);
      result_.logprobs.push_back(std::move(l));
    }
    parts_.clear();
    text_.feed(e.token, e.finish == runtime::FinishReason::stop, parts_);
    emit(e.token);
  }

  // What was said elsewhere: it decides how the text goes on, and is heard no more.
  void skip(const std::vector<int32_t>& said) {
    for (const int32_t token : said) text_.feed(token, false, parts_);
  }

  bool stopped() const { return text_.stopped(); }
  std::string stopped_by() const { return text_.stopped_by(); }

  void finish() {
    parts_.clear();
    text_.finish(parts_);
    if (!parts_.empty()) emit(-1);
  }

 private:
  void emit(int32_t token) {
    for (const AnswerPart& p : parts_)
      if (p.kind == AnswerPart::Kind::text) result_.text += p.text;
    if (on_parts_) on_parts_(parts_, token);
  }

  const GenerateOptions& options_;
  const OnParts on_parts_;
  Generation& result_;
  AnswerText text_;
  std::vector<AnswerPart> parts_;
};

// For a reader of plain text.
inline OnParts text_reader(const OnDelta& on_delta) {
  if (!on_delta) return {};
  return [&on_delta](const std::vector<AnswerPart>& parts, int32_t token) {
    std::string text;
    for (const AnswerPart& p : parts) text += p.text;
    on_delta(text, token < 0 ? std::vector<int32_t>() : std::vector<int32_t>{token});
  };
}

}  // namespace kdelta
