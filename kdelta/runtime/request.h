// One request's timeline on the host: tokens known, tokens computed, what it holds, how it ends.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kdelta/ops/sample/sample.h"
#include "kdelta/runtime/prefix_cache.h"
#include "kdelta/runtime/token_constraint.h"

namespace kdelta::runtime {

using RequestId = int64_t;

enum class FinishReason : uint8_t {
  none,
  stop,    // a stop id, or the owner said so (a stop string)
  length,  // max_tokens or the context limit
  cancelled,
  error,  // no usable logit, a dead end of its constraint, or a step failed; `error` says what
};
const char* to_string(FinishReason reason);
inline constexpr char kNoMemory[] = "out of memory";  // the error of a request whose step could not allocate

struct RequestOptions {
  SamplingParams sampling;
  int64_t max_tokens = 16;  // of output; >= 1
  int64_t min_tokens = 0;   // stop ids are banned before that many
  std::vector<int32_t> stop_ids;
  std::vector<LogitBias> bias;
  int32_t top_logprobs = -1;
  std::shared_ptr<TokenConstraint> constraint = {};  // null: none. Of this request alone; no part of its state's image
};

struct Request {
  RequestId id = 0;
  RequestOptions options;
  // Behind the tokens that were generated, `output` holds the drafts of the step that runs: the sampler counts and
  // penalises by what stands before a position, and a draft that is accepted is already in place.
  std::vector<int32_t> prompt, output;
  int64_t drafts = 0;          // of output: not yet verified
  int64_t computed = 0;        // tokens of prompt + output whose state is stored
  int32_t accepted = 1;        // tokens that the last step kept: its state begins in column accepted - 1
  std::vector<int32_t> slots;  // one per column, empty while waiting
  std::vector<int32_t> pages;  // in order
  int64_t shared_pages = 0;    // of these, the first ones: others may own them too
  std::vector<char> saved;     // the state of `computed` tokens while it holds no slots; empty: it starts anew
  Reuse reuse;                 // what it took from the prefix cache when it started
  // Who computes the first `awaited` tokens before it could start, and is to leave a state of them; 0: nobody, and
  // nobody will, as everybody earlier is here; -1: not looked for yet.
  RequestId leader = -1;
  int64_t awaited = 0;
  int64_t waited_for = 0;                       // tokens of the state that it last waited for
  std::vector<PrefixCache::Written> snapshots;  // written by its prefill, not yet published
  FinishReason finish = FinishReason::none;
  std::string error;

  int64_t known() const { return static_cast<int64_t>(prompt.size() + output.size()) - drafts; }
  int64_t generated() const { return static_cast<int64_t>(output.size()) - drafts; }
  int32_t token(int64_t i) const {
    const auto p = static_cast<int64_t>(prompt.size());
    return i < p ? prompt[static_cast<size_t>(i)] : output[static_cast<size_t>(i - p)];
  }
};

}  // namespace kdelta::runtime
