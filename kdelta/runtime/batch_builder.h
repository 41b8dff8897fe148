// Plan -> Batch. The only writer of offsets, slots, pages and padding. Its arrays have fixed addresses for an engine's
// life; a step that is smaller than the last one leaves nothing of it visible.
#pragma once

#include <span>

#include "kdelta/core/buffer.h"
#include "kdelta/layers/forward.h"
#include "kdelta/runtime/request.h"

namespace kdelta::runtime {

struct BatchCapacity {
  int64_t tokens = 0, sequences = 0, columns = 1, pages = 0, page_tokens = 64, logit_rows = 0;
};

// One row of a step.
struct BatchRow {
  Request* request = nullptr;
  int64_t tokens = 0;
  bool prefill = false;
};

class BatchBuilder {
 public:
  BatchBuilder(Device device, const BatchCapacity& capacity);
  static int64_t bytes(const BatchCapacity& capacity);

  // Rows: prefill first. Every row wants logits of its last token when that completes what is known of it, or of all
  // its tokens when all_logits is set. logit_request()[m] is the row that logits row m belongs to.
  const Batch& build(std::span<const BatchRow> rows, bool all_logits);
  std::span<const int> logit_owner() const { return logit_owner_; }
  // A batch of full capacity over memory that nobody reads, for planning: all tokens prefill, or one decode row per
  // sequence.
  static Batch planning(const BatchCapacity& capacity, bool decode);

 private:
  void fill_row(int64_t n, const BatchRow& row, int64_t first_token);
  int32_t* ints(int64_t& cursor, int64_t count);

  BatchCapacity capacity_;
  Buffer buffer_;
  int32_t *token_, *cu_, *context_, *slot_, *accepted_, *pages_, *logit_row_, *draft_;
  uint8_t* fresh_;
  Batch batch_;
  std::vector<int> logit_owner_;
};

}  // namespace kdelta::runtime
