// One request's timeline on the host: tokens known, tokens computed, what it holds, how it ends.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kdelta/ops/sample/sample.h"

namespace kdelta::runtime {

using RequestId = int64_t;

enum class FinishReason : uint8_t {
  none,
  stop,    // a stop id, or the owner said so (a stop string)
  length,  // max_tokens or the context limit
  cancelled,
  error,  // no usable logit, or a step failed; `error` says what
};
const char* to_string(FinishReason reason);

struct RequestOptions {
  SamplingParams sampling;
  int64_t max_tokens = 16;  // of output; >= 1
  int64_t min_tokens = 0;   // stop ids are banned before that many
  std::vector<int32_t> stop_ids;
  std::vector<LogitBias> bias;
  int32_t top_logprobs = -1;
};

struct Request {
  RequestId id = 0;
  RequestOptions options;
  std::vector<int32_t> prompt, output;
  int64_t computed = 0;        // tokens of prompt + output whose state is stored
  std::vector<int32_t> slots;  // one per column, empty while waiting
  std::vector<int32_t> pages;  // in order
  FinishReason finish = FinishReason::none;
  std::string error;

  int64_t known() const { return static_cast<int64_t>(prompt.size() + output.size()); }
  int32_t token(int64_t i) const {
    const auto p = static_cast<int64_t>(prompt.size());
    return i < p ? prompt[static_cast<size_t>(i)] : output[static_cast<size_t>(i - p)];
  }
};

}  // namespace kdelta::runtime
