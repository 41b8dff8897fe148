// What an engine is asked to be, and what memory that takes.
#pragma once

#include "kdelta/model/model.h"
#include "kdelta/runtime/batch_builder.h"
#include "kdelta/runtime/capacity.h"
#include "kdelta/runtime/prefix_cache.h"

namespace kdelta::runtime {

inline constexpr int64_t kMostDrafts = 16;

struct EngineConfig {
  Device device;  // where the model runs; its weights are there
  DType activation = DType::bf16;
  DType recurrent = DType::f32;
  int64_t max_sequences = 1;
  int64_t token_budget = 512;  // tokens of one step
  int64_t max_length = 4096;   // prompt + output of one request
  int64_t cache_tokens = 0;    // of all requests together; 0: max_sequences * max_length
  int64_t page_tokens = 64;
  int64_t prefill_grid = 64;                        // see SchedulerConfig
  int64_t drafts = 0;                               // most draft tokens verified in one step of a request, 0..16
  DraftStates draft_states = DraftStates::records;  // what a verification keeps to be taken back to
  int64_t prefix_snapshots = 0;                     // states kept for requests that begin alike; 0: no prefix reuse
  int64_t prefix_interval = 256;                    // tokens between the snapshots that a prefill leaves
  int64_t save_bytes = 0;       // for the states of preempted requests; what does not fit is computed again
  uint64_t model_id = 0;        // tells weights apart: a state of another id is refused
  std::string arithmetic;       // what last bits depend on, in words; goes with states, which it does not refuse
  std::vector<Bucket> buckets;  // shapes that steps are padded to; empty: none
  // On a CUDA device: sublayers that are no part of what is captured of a mixed bucket, beside those that ask for that
  // (Sublayer::breaks).
  std::vector<std::string> break_at;
  // Called behind each bucket that is captured at start; what it throws ends the start.
  std::function<void(int64_t done, int64_t total)> on_recorded;
  bool all_logits = false;       // logits of every token, not only of the last (logits, perplexity)
  Communicator* comm = nullptr;  // of the ranks that hold the model's other parts; null: none. Outlives the engine
  Options options;
};

// Bytes that an engine of this configuration takes beside the weights. The large parts are exact: scratch comes from
// walking a full step. `host` bounds the bookkeeping: lists of slots and pages, rows of a step, nodes of the prefix
// cache, and max_sequences requests of full length (request_bytes()). Only requests that wait beyond that number,
// states that are imported and log-probabilities that are asked for come on top, with whoever brings them.
struct MemoryPlan {
  int64_t slots = 0, pages = 0, scratch = 0, logits = 0, batch = 0, host = 0, drafter = 0, saved = 0;
  int64_t aux_scratch = 0;                     // of scratch: what work on a second queue of a CUDA device borrows
  int64_t sequence_bytes = 0, page_bytes = 0;  // of one sequence's slots, drafts included, and of one page, all layers
  int64_t total() const { return slots + pages + scratch + logits + batch + host + drafter + saved; }
  // The part of it on the device, when that is not the CPU.
  int64_t on_device() const { return slots + pages + scratch + logits + batch; }
};
// The drafter's part is what it says of itself.
MemoryPlan plan_memory(const Model& model, const EngineConfig& config, int64_t drafter_bytes = 0);
// Walks one full step (all tokens of the budget prefilling, or one decode row per sequence) without touching memory.
// The observer sees every op it would run; the return value is the scratch it needs. A CUDA device
// has to be there.
int64_t walk_step(const Model& model, const EngineConfig& config, bool decode, OpObserver* observer);

// What the parts of the runtime derive from a configuration.
StateParams state_params(const EngineConfig& config);
PoolSize pool_size(const EngineConfig& config);
BatchCapacity batch_capacity(const EngineConfig& config);
PrefixConfig prefix_config(const EngineConfig& config);
// How many of the numbers 0, 1, 2, ... a CUDA device holds: slots, and counts of kept tokens, that a replay is told.
int64_t replay_numbers(const EngineConfig& config);
// What a request of full length takes while it is in the engine, beside its state.
int64_t request_bytes(const EngineConfig& config);
// How this model's drafts are kept in less memory; records when both take the same.
DraftStates lighter_draft_states(const Model& model, const EngineConfig& config);
// Throws Error(invalid_argument) naming the setting.
void check_config(const EngineConfig& config);

}  // namespace kdelta::runtime
