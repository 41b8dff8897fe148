// The part of a Batch that says where the rows' state lies: one object per StateKind, found through a registry, so that
// a kind of state is added by a row there and nothing else in the runtime changes.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kdelta/layers/forward.h"
#include "kdelta/runtime/request.h"

namespace kdelta::runtime {

struct BatchCapacity {
  int64_t tokens = 0, sequences = 0, columns = 1, pages = 0, page_tokens = 64, logit_rows = 0, snapshots = 0;
};

// The state after the first `position` tokens of the row's step, to be stored in a home slot.
struct RowSnapshot {
  int32_t position = 0, slot = 0;
};

// One row of a step.
struct BatchRow {
  Request* request = nullptr;
  int64_t tokens = 0;  // drafts included
  int64_t drafts = 0;
  bool prefill = false;
  std::span<const RowSnapshot> snapshots = {};  // prefill rows only
};

class StateArrays {
 public:
  virtual ~StateArrays() = default;
  // How many int32 it needs, and where they are.
  virtual int64_t ints() const = 0;
  virtual void bind(int32_t* memory) = 0;
  virtual void begin() {}
  virtual void fill(int64_t n, const BatchRow& row) = 0;
  // Rows [from, to) belong to nobody.
  virtual void pad(int64_t from, int64_t to) = 0;
  // Points the batch at the arrays of `rows` rows; padded: in their full, fixed shape.
  virtual void attach(Batch& batch, int64_t rows, bool padded) const = 0;
  virtual std::string explain(int64_t n) const = 0;
};

// One object per registered kind, in a fixed order.
std::vector<std::unique_ptr<StateArrays>> make_state_arrays(const BatchCapacity& capacity);

}  // namespace kdelta::runtime
