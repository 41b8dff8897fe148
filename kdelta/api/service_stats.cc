#include <algorithm>

#include "kdelta/api/service.h"

namespace kdelta {
namespace {

// From a step of a small model to a long answer of a large one.
Histogram of_seconds() {
  return Histogram({.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 25, 60, 120, 300, 600});
}

Histogram of_tokens() {
  return Histogram({1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000, 1e6});
}

}  // namespace

void Histogram::add(double value) {
  ++buckets[static_cast<size_t>(std::lower_bound(bounds.begin(), bounds.end(), value) - bounds.begin())];
  sum += value;
  ++count;
}

ServiceStats::ServiceStats()
    : first_token(of_seconds()),
      inter_token(of_seconds()),
      whole(of_seconds()),
      queued(of_seconds()),
      prefill(of_seconds()),
      decode(of_seconds()),
      step_tokens(of_tokens()),
      prompt_length(of_tokens()),
      answer_length(of_tokens()),
      max_tokens(of_tokens()) {}

}  // namespace kdelta
