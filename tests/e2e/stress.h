// Random mixes of requests through one engine: company, arrivals, cancellations, want of memory, prefixes, drafts,
// handoffs, poison. Every answer is compared, to the bit, with the one the request gets alone.
#pragma once

#include <functional>
#include <optional>

#include "tests/e2e/crowd.h"

namespace kdelta::test {

struct StressScale {
  int64_t requests = 16;   // most of one mix
  int64_t longest = 300;   // tokens of a prompt
  int64_t output = 50;     // tokens of an answer
  int64_t sequences = 12;  // most at once
};

struct StressCounts {
  int64_t requests = 0, compared = 0, cancelled = 0, moved = 0, preempted = 0, hits = 0, accepted = 0, padded = 0;
};

// One mix; failures are reported to GoogleTest with the seed. `draft`: a draft model to choose among the drafters.
void run_mix(const Model& model, const Model* draft, uint64_t seed, const StressScale& scale, StressCounts* counts);

}  // namespace kdelta::test
