// Which sequences run how many tokens in the next step. Pure: what is waiting, running and free goes in, a plan comes
// out; no clock, no device, same input same plan.
//
// Order of service: every running decode gets one token; then replayed tokens and drafts, as long as a prefill that
// waits still finds a grid piece of budget; the rest goes to prefills. The oldest prefill gets half of that rest and
// what the others leave, the others one grid piece each in order of arrival, so that a short prompt passes a long one
// and nobody starves. Memory goes by age alone: who came first takes pages from the youngest that runs (preemption),
// and nobody is admitted before an earlier arrival.
//
// One that could start behind a beginning that an earlier one is about to compute waits for that: the earlier one gets
// its tokens first anyway, so the state is there no later than the waiting one could have made it, and the tokens are
// computed once. Its place, a sequence and its pages, is kept from those who came later. A wait ends with the earlier
// one's prefill, or with the earlier one, and the oldest never waits: nobody starves.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kdelta::runtime {

struct SchedulerConfig {
  int64_t max_sequences = 1;   // rows of a step, and sequences that hold state
  int64_t token_budget = 512;  // tokens of a step; at least max_sequences
  // Prefill is cut only at multiples of this many tokens from the sequence's first, except at the prompt's end, so that
  // a prompt gives the same bits however it was cut. 1: anywhere (outside exact mode).
  int64_t prefill_grid = 64;
  int64_t page_tokens = 64;
  int64_t columns = 1;  // most tokens of a decode row
  // The least that waiting for another's state must save, in tokens: what the step that it may cost is worth.
  int64_t wait_from = 64;
};

// One live request as the scheduler sees it, in order of arrival.
struct Candidate {
  int64_t prompt = 0;       // tokens of the prompt
  int64_t known = 0;        // prompt + output
  int64_t computed = 0;     // of a waiting one: what it starts with (a saved state, a prefix hit)
  bool running = false;     // holds slots
  int64_t pages = 0;        // held, or shared with it when it starts
  int64_t freed_pages = 0;  // what preempting it gives back: pages that nobody else owns
  int64_t drafts = 0;       // proposed to follow the known tokens
  // An earlier candidate whose prefill will leave a state of the first `awaited` tokens, which are this one's too; -1:
  // none. Named as long as that state is still to come.
  int leader = -1;
  int64_t awaited = 0;
};

struct PlanRow {
  int candidate = 0;
  int64_t tokens = 0;  // drafts included
  int64_t drafts = 0;
  bool prefill = false;
};

// Kept by the caller and filled anew each step, so that a steady state allocates nothing.
struct Plan {
  std::vector<PlanRow> rows;   // prefill rows first, then decode rows; stable
  std::vector<int> admitted;   // candidates that start and need slots
  std::vector<int> preempted;  // candidates that lose slots and pages before anything else happens
  std::vector<int> waiting;    // candidates that could start, and wait for their leader's state
  int64_t new_pages = 0;       // pages that the rows need beyond what they hold
  std::vector<uint8_t> taken;  // by candidate: planned or preempted (scratch)
};

// A sequence is in prefill while prompt tokens are left to compute; the single last one of a prompt, with a state
// before it, is a decode row, and so are output tokens that were known before (after a preemption), up to `columns` at
// once. Never plans more than max_sequences rows, the free slots and pages, or the budget; the budget is exceeded only
// when a lone prefill could not move otherwise (grid > budget). If every candidate fits memory alone, a plan has a row
// or a preemption.
void plan_step(const SchedulerConfig& config, std::span<const Candidate> candidates, int64_t free_sequences,
               int64_t free_pages, Plan* plan);

// The candidates as the step after `plan` finds them, before its tokens are known: every draft accepted, every sampled
// token there, nobody ended. What is planned from these bounds holds for the truth: computed is never more, so pages
// suffice, and rows are of the same kind; the rows of those that ended mean nothing. Preempted candidates are taken to
// start anew: a caller that saved their state, and put that into `candidates` when it launched the plan, passes the
// plan without them. Who waits for a state waits on: whether it is there is known when the step is over.
void bound_candidates(std::span<const Candidate> candidates, const SchedulerConfig& config, const Plan& plan,
                      std::vector<Candidate>* next);

// One line per row, preemption and candidate left out, each with its reason.
std::string explain_plan(const SchedulerConfig& config, std::span<const Candidate> candidates, const Plan& plan);

}  // namespace kdelta::runtime
