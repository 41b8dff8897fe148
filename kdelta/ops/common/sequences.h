// How the tokens of a step belong to sequences and which state each sequence owns: the part of the Batch that ops with
// state (kda, short_conv) read. Sequences are laid out prefill | decode; a decode row may carry drafts to verify (len >
// 1).
#pragma once

#include "kdelta/core/tensor.h"

namespace kdelta {

struct Sequences {
  View<const int32_t> cu;  // [N+1] prefix sum of lengths; cu[0] = 0, cu[N] <= T; rows of T past cu[N] belong to nobody
  View<const int32_t> slot;  // [N, columns] state slots; column 0 is the sequence's own, -1 marks a padded row
  View<const int32_t>
      accepted;               // [N] in 1..columns: the start state is column accepted-1 (convolution: row accepted-1)
  View<const uint8_t> fresh;  // [N] 1: the start state is zero, whatever the slot holds
  View<const int32_t> snapshot;  // [Q, 3] (sequence, tokens of this step after which to save, slot); Q may be 0
  int n_prefill = 0;             // sequences [0, n_prefill) run the chunk schedule
  int n_decode = 0;              // sequences [n_prefill, n_prefill + n_decode) run the step recurrence
  int64_t max_len = 0;           // upper bound of a length, host-known

  int64_t count() const { return slot.dim(0); }
  int64_t columns() const { return slot.dim(1); }
};

// Shapes and dtypes only; reads no device memory. Throws Error(invalid_argument) prefixed with `op`.
void expect_sequences(const Sequences& s, const char* op);

// CPU backend: reads the arrays and throws Error(invalid_argument) before any work when cu does not start at 0,
// decreases or ends past `tokens`; when a live row's accepted is outside 1..columns, its slot outside 1..slots-1 or
// already named by a lower row; when a decode row is longer than it has columns; when a snapshot names a sequence,
// position or slot out of range. A row is live when its slot is not -1 and its length is not 0. Column c of a row's
// slots is checked for c = accepted-1 (unless fresh) and for every column the row will write (prefill: 0; decode:
// 0..len-1). An op that keeps one slot per sequence (short_conv) asks for column 0 only: its pool may be smaller than
// the numbers in the other columns. Up to 128 slots it allocates nothing.
enum class SlotColumns : uint8_t { all, first };
void validate_sequences(const Sequences& s, int64_t tokens, int64_t slots, const char* op,
                        SlotColumns columns = SlotColumns::all);

}  // namespace kdelta
