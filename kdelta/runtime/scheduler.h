// Which sequences run how many tokens in the next step. Pure: what is waiting, running and free goes in, a plan comes
// out; no clock, no device, same input same plan. Decodes go first, one token each; the rest of the budget goes to
// prefills in order of arrival.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kdelta::runtime {

struct SchedulerConfig {
  int64_t max_sequences = 1;   // rows of a step, and sequences that hold state
  int64_t token_budget = 512;  // tokens of a step; at least max_sequences
  // Prefill is cut only at multiples of this many tokens from the sequence's first, except at the prompt's end, so that
  // a prompt gives the same bits however it was cut. 1: anywhere (outside exact mode).
  int64_t prefill_grid = 64;
  int64_t page_tokens = 64;
};

// One live request as the scheduler sees it, in order of arrival.
struct Candidate {
  int64_t prompt = 0;  // tokens of the prompt
  int64_t known = 0;   // prompt + output
  int64_t computed = 0;
  bool running = false;  // holds slots
  int64_t pages = 0;     // held
};

struct PlanRow {
  int candidate = 0;
  int64_t tokens = 0;
  bool prefill = false;
};

// Kept by the caller and filled anew each step, so that a steady state allocates nothing.
struct Plan {
  std::vector<PlanRow> rows;  // prefill rows first, then decode rows
  std::vector<int> admitted;  // candidates that start and need slots
  int64_t new_pages = 0;      // pages that the rows need beyond what they hold
};

// A sequence is in prefill while prompt tokens are left to compute; the single last one of a prompt, with a state
// before it, is a decode row. Never plans more than max_sequences rows, the free slots and pages, or the budget; the
// budget is exceeded only when a lone prefill could not move otherwise (grid > budget).
void plan_step(const SchedulerConfig& config, std::span<const Candidate> candidates, int64_t free_sequences,
               int64_t free_pages, Plan* plan);

}  // namespace kdelta::runtime
