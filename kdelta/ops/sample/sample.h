// From logits to tokens, one independent row per request. Order, as users of llama.cpp and vLLM expect it:
//   logit bias -> banned ids and mask -> repetition / presence / frequency penalties -> greedy if temperature = 0, else
//   temperature -> top_k -> top_p -> min_p -> draw
// Draws use a counter-based generator (Philox4x32-10 keyed by seed, counter = draw index), so a request's tokens do not
// depend on its neighbours. Ties go to the lower id. Reported log-probabilities are log softmax of the raw logits
// (before any processing).
#pragma once

#include <span>
#include <vector>

#include "kdelta/core/exec.h"

namespace kdelta {

struct SamplingParams {
  float temperature = 1;         // 0: greedy
  int32_t top_k = 0;             // 0 or less: off
  float top_p = 1;               // (0, 1]; 1: off; 0 keeps the best token only
  float min_p = 0;               // [0, 1], relative to the best probability
  float repetition_penalty = 1;  // > 0; applies to prompt and output tokens
  float presence_penalty = 0;    // output tokens only
  float frequency_penalty = 0;   // output tokens only
  uint64_t seed = 0;
};

struct LogitBias {
  int32_t token;
  float bias;  // -infinity bans the token
};

struct SampleRow {
  SamplingParams params;
  std::span<const LogitBias> bias;
  std::span<const int32_t> banned;  // ids that may not be chosen (stop ids before min_tokens)
  std::span<const int32_t> prompt;  // for repetition_penalty
  std::span<const int32_t> output;  // tokens generated so far; its size is also the draw index
  int32_t top_logprobs = -1;        // -1: none; n >= 0: the chosen token's and the n best tokens' log-probabilities
  // A bit for each id, 32 a word from the lowest on: those that are 0 may not be chosen. Empty: all may.
  std::span<const uint32_t> allowed = {};
};

struct TokenLogprob {
  int32_t token;
  float logprob;
};

struct SampleResult {
  int32_t token = -1;  // -1: no usable logit (all NaN or -infinity, or a NaN among the logits): the request must end
  float logprob = 0;   // when top_logprobs >= 0
  std::vector<TokenLogprob> top;  // best first; tokens of probability 0 are left out
};

// Words of SampleRow::allowed.
constexpr int64_t mask_words(int64_t vocabulary) {
  return (vocabulary + 31) / 32;
}

struct SampleArgs {
  View<const float> logits;         // [M, vocabulary], row stride free; never written
  std::span<const SampleRow> rows;  // M
  std::span<SampleResult> results;  // M
};

// Throws Error(invalid_argument) for shapes and for parameters out of range, naming row, field and value. A row holding
// any NaN or +infinity yields token -1 and leaves the others alone: a broken state must not look like an answer.
void sample(const Exec& ex, const SampleArgs& args);
void check_sampling_params(const SamplingParams& params);

}  // namespace kdelta
