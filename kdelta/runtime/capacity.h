// How much memory which plan takes: one formula for the scheduler, the pool and the memory report. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "kdelta/core/device.h"
#include "kdelta/layers/spec.h"

namespace kdelta::runtime {

using LayerStates = std::vector<std::vector<StateSpec>>;

// What can be handed out; number 0 of slots and pages is reserved on top. columns: the StateParams' (1 + most drafts).
struct PoolSize {
  int64_t slots = 0, draft_slots = 0, pages = 0, columns = 1;
};

// Bytes of one home slot, one draft slot, one page, summed over layers.
int64_t slot_bytes(const LayerStates& layers);
int64_t draft_slot_bytes(const LayerStates& layers);
int64_t page_bytes(const LayerStates& layers);
// Of slots, all that one sequence holds.
int64_t sequence_bytes(const LayerStates& layers, int64_t columns);

// How many arrays the pool of one spec holds, the reserved one included.
int64_t pool_count(const StateSpec& spec, const PoolSize& size);
// What all buffers of a kind take, rounding of the allocator included.
int64_t pool_bytes(Device device, const LayerStates& layers, StateKind kind, const PoolSize& size);

constexpr int64_t pages_for(int64_t tokens, int64_t page_tokens) {
  return (tokens + page_tokens - 1) / page_tokens;
}

// Engines whose slots and pages share one allocator (vLLM's hybrid layout) need a page of latents that is at least as
// large as a slot; these three give their numbers, so that memory plans can be compared. Ours needs none of them.
//
// Tokens of a page of `token_bytes` each that holds one slot, rounded up to a multiple of `step`.
int64_t tokens_of_shared_page(int64_t one_slot_bytes, int64_t token_bytes, int64_t step = 128);
// Columns of a recurrent layer's block table: one per page of the longest sequence and one per draft. Not multiplied by
// context parallelism: recurrent tables are replicated.
int64_t table_columns(int64_t max_length, int64_t page_tokens, int64_t drafts);
// Layers of each cache group: recurrent layers in groups no larger than the target's attention layers, the draft
// model's attention layers joined to the target's. 24, 5 and 69 give 29, 23, 23, 23. `padding` receives the share of
// recurrent layers that is padded when each group is as large as the target's attention group.
std::vector<int64_t> group_layers(int64_t attention, int64_t draft_attention, int64_t recurrent,
                                  double* padding = nullptr);

}  // namespace kdelta::runtime
