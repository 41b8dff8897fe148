// Plan -> Batch. The only writer of offsets, slots, pages and padding. Its arrays have fixed addresses for an engine's
// life; a step that is smaller than the last one leaves nothing of it visible. What a row says about its state is
// written by the arrays registered for each StateKind (state_arrays.h): no line here knows a layer or a model.
#pragma once

#include <span>
#include <string>

#include "kdelta/core/buffer.h"
#include "kdelta/core/stream.h"
#include "kdelta/layers/forward.h"
#include "kdelta/runtime/request.h"
#include "kdelta/runtime/state_arrays.h"

namespace kdelta::runtime {

// A shape of step that is captured once. Of decode rows: that many, of up to row_tokens tokens each; such a step is
// padded to rows x row_tokens tokens and captured whole. Mixed: up to `rows` rows, prompts among them, of up to
// mixed_tokens tokens together; it is padded to that many, and captured in the pieces between the breaks of the model.
struct Bucket {
  int64_t rows = 0, row_tokens = 1;
  int64_t mixed_tokens = 0;  // 0: decode rows only
  bool mixed() const { return mixed_tokens > 0; }
  int64_t tokens() const { return mixed() ? mixed_tokens : rows * row_tokens; }
};

// The smallest bucket that holds a step of these rows: a mixed one if there is a prompt among them (its last token with
// a state before it is a decode row), else one of decode rows. Null: the step runs in its own shape.
const Bucket* choose_bucket(std::span<const Bucket> buckets, std::span<const BatchRow> rows);

class BatchBuilder {
 public:
  // On a CUDA device a batch is written into pinned memory and copied, by one enqueued copy; the next build() may only
  // begin when that copy is done.
  BatchBuilder(Device device, const BatchCapacity& capacity, Stream* stream = nullptr);
  static int64_t bytes(const BatchCapacity& capacity);

  // Rows: prefill first. A row whose tokens reach the end of what is known of its request wants logits of that last
  // token and of the drafts behind it; with all_logits every token does. logit_owner()[m] is the row that logits row m
  // belongs to; rows of logits behind its end are padding. With a bucket, rows, tokens and logits are padded to its
  // size: token, draft and logit_row -1, slots and pages -1, accepted 1, no length; rows that pad are decode rows.
  // Logits of a mixed bucket are not padded. No rows at all are an idle step. On a CUDA device the host part of a batch
  // in a bucket of decode rows says what the bucket can hold: it is captured once for all.
  const Batch& build(std::span<const BatchRow> rows, bool all_logits, const Bucket* bucket = nullptr);
  std::span<const int> logit_owner() const { return logit_owner_; }
  // The ranges of the step that was built last, one line per kind of row and one per row.
  std::string explain() const;

  // A batch of full capacity over memory that nobody reads, for planning: all tokens prefill, or one decode row per
  // sequence.
  static Batch planning(const BatchCapacity& capacity, bool decode);

 private:
  void fill_row(int64_t n, const BatchRow& row, int64_t first_token);
  void want_logits(int64_t n, const BatchRow& row, int64_t first_token, bool all);
  void pad(int64_t live_rows, int64_t live_tokens, const Bucket* bucket);
  void attach(int64_t rows, int64_t tokens, int64_t logit_rows);
  void upload(const Bucket* bucket);

  BatchCapacity capacity_;
  Stream* stream_;
  HostBuffer host_;
  Buffer device_;  // empty on the CPU
  int32_t *token_, *draft_, *cu_, *context_, *logit_row_;
  std::vector<std::unique_ptr<StateArrays>> states_;
  Batch batch_;
  int64_t live_rows_ = 0;
  std::vector<int> logit_owner_;
};

}  // namespace kdelta::runtime
