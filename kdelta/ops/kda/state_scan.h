// The state scan of the chunk form alone, as other code bases expose it (chunk_gated_delta_rule_fwd_h): per sequence
// and head, over chunks of 64 tokens counted from the sequence's first,
//   v_new = u - w h;   h <- decay h + k^T v_new          (h at the start of each chunk is an output)
// with the decay of a whole chunk per key channel, 2^gk_last, or per head, e^g_last (2^g_last when the gate is base 2).
// gk and g are cumulative inside their chunk. With g the rows of k are weighted here by e^(g_last - g); with gk the
// caller passes k already weighted (kg). Without either the decay is 1. A reference: fp64 inside, CPU only. Letters: T
// tokens, N sequences, H heads, K key width, V value width, NC chunks of all sequences together, sequence after
// sequence.
#pragma once

#include "kdelta/core/tensor.h"

namespace kdelta {

enum class ScanGateBase : uint8_t { e, two };

struct StateScanArgs {
  View<const float> k, w;  // [T, H, K]
  View<const float> u;     // [T, H, V]
  View<const float> gk;    // [T, H, K] or null; base 2
  View<const float> g;     // [T, H] or null; not together with gk
  ScanGateBase g_base = ScanGateBase::e;
  View<const float> initial_state;  // [N, H, V, K] or null: zeros
  View<const int32_t> cu;           // [N+1], from 0, never decreasing, ending at or before T
  View<float> h;                    // [NC, H, V, K]
  View<float> v_new;                // [T, H, V] or null; rows past cu[N] become zero
  View<float> final_state;          // [N, H, V, K] or null; an empty sequence's is its initial state
};

// Chunks of all sequences: the first dimension of h.
int64_t state_scan_chunks(const View<const int32_t>& cu);

// All views dense. Throws Error(invalid_argument) naming the argument, before anything is written.
void state_scan(const StateScanArgs& args);

}  // namespace kdelta
