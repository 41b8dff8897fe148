#include "kdelta/runtime/batch_builder.h"

#include <algorithm>

#include "kdelta/core/check.h"

namespace kdelta::runtime {

int64_t BatchBuilder::bytes(const BatchCapacity& c) {
  // token, draft [T]; cu [N+1]; context, accepted [N]; slot [N, columns]; pages [N, P]; logit_row [M]; fresh [N] bytes
  const int64_t ints =
      2 * c.tokens + (c.sequences + 1) + 2 * c.sequences + c.sequences * (c.columns + c.pages) + c.logit_rows;
  return ints * 4 + c.sequences;
}

int32_t* BatchBuilder::ints(int64_t& cursor, int64_t count) {
  int32_t* p = static_cast<int32_t*>(buffer_.data()) + cursor;
  cursor += count;
  return p;
}

BatchBuilder::BatchBuilder(Device device, const BatchCapacity& capacity)
    : capacity_(capacity), buffer_(Buffer::zeros(device, bytes(capacity))) {
  int64_t cursor = 0;
  token_ = ints(cursor, capacity.tokens);
  draft_ = ints(cursor, capacity.tokens);
  cu_ = ints(cursor, capacity.sequences + 1);
  context_ = ints(cursor, capacity.sequences);
  accepted_ = ints(cursor, capacity.sequences);
  slot_ = ints(cursor, capacity.sequences * capacity.columns);
  pages_ = ints(cursor, capacity.sequences * capacity.pages);
  logit_row_ = ints(cursor, capacity.logit_rows);
  fresh_ = reinterpret_cast<uint8_t*>(ints(cursor, 0));
  logit_owner_.reserve(static_cast<size_t>(capacity.logit_rows));
}

void BatchBuilder::fill_row(int64_t n, const BatchRow& row, int64_t first) {
  const Request& r = *row.request;
  KDELTA_CHECK(r.computed + row.tokens <= r.known(), "request ", r.id, " has no token ", r.known());
  for (int64_t i = 0; i < row.tokens; ++i) {
    token_[first + i] = r.token(r.computed + i);
    draft_[first + i] = -1;
  }
  cu_[n + 1] = static_cast<int32_t>(first + row.tokens);
  context_[n] = static_cast<int32_t>(r.computed);
  accepted_[n] = 1;
  fresh_[n] = r.computed == 0 ? 1 : 0;
  KDELTA_CHECK(static_cast<int64_t>(r.slots.size()) == capacity_.columns, "request ", r.id, " holds ", r.slots.size(),
               " slots");
  std::copy(r.slots.begin(), r.slots.end(), slot_ + n * capacity_.columns);
  KDELTA_CHECK(static_cast<int64_t>(r.pages.size()) <= capacity_.pages, "request ", r.id, " holds ", r.pages.size(),
               " pages");
  int32_t* pages = pages_ + n * capacity_.pages;
  std::fill(std::copy(r.pages.begin(), r.pages.end(), pages), pages + capacity_.pages, -1);
}

const Batch& BatchBuilder::build(std::span<const BatchRow> rows, bool all_logits) {
  const auto N = static_cast<int64_t>(rows.size());
  KDELTA_CHECK(N <= capacity_.sequences, N, " rows of ", capacity_.sequences);
  batch_ = Batch{};
  logit_owner_.clear();
  int64_t T = 0;
  cu_[0] = 0;
  for (int64_t n = 0; n < N; ++n) {
    const BatchRow& row = rows[static_cast<size_t>(n)];
    KDELTA_CHECK(n == 0 || !row.prefill || rows[static_cast<size_t>(n - 1)].prefill,
                 "a prefill row behind a decode row");
    KDELTA_CHECK(T + row.tokens <= capacity_.tokens, "more tokens than ", capacity_.tokens);
    fill_row(n, row, T);
    (row.prefill ? batch_.n_prefill : batch_.n_decode) += 1;
    const int64_t context = row.request->computed + row.tokens;
    batch_.max_len = std::max(batch_.max_len, row.tokens);
    batch_.max_context = std::max(batch_.max_context, context);
    const int64_t wanted = all_logits ? row.tokens : context == row.request->known() ? 1 : 0;
    for (int64_t i = T + row.tokens - wanted; i < T + row.tokens; ++i) {
      KDELTA_CHECK(static_cast<int64_t>(logit_owner_.size()) < capacity_.logit_rows, "more logit rows than ",
                   capacity_.logit_rows);
      logit_row_[logit_owner_.size()] = static_cast<int32_t>(i);
      logit_owner_.push_back(static_cast<int>(n));
    }
    T += row.tokens;
  }
  batch_.token = {token_, {T}};
  batch_.draft = {draft_, {T}};
  batch_.cu = {cu_, {N + 1}};
  batch_.context = {context_, {N}};
  batch_.accepted = {accepted_, {N}};
  batch_.fresh = {fresh_, {N}};
  batch_.slot = {slot_, {N, capacity_.columns}};
  batch_.pages = {pages_, {N, capacity_.pages}};
  batch_.logit_row = {logit_row_, {static_cast<int64_t>(logit_owner_.size())}};
  return batch_;
}

Batch BatchBuilder::planning(const BatchCapacity& c, bool decode) {
  // One address for all: planning ops check shapes and pointers and touch nothing.
  static int32_t nowhere = 0;
  static uint8_t no_byte = 0;
  Batch b;
  const int64_t T = decode ? c.sequences * c.columns : c.tokens;
  (decode ? b.n_decode : b.n_prefill) = static_cast<int>(c.sequences);
  b.max_len = decode ? c.columns : T;
  b.max_context = c.pages * c.page_tokens;
  b.token = {&nowhere, {T}};
  b.draft = {&nowhere, {T}};
  b.cu = {&nowhere, {c.sequences + 1}};
  b.context = {&nowhere, {c.sequences}};
  b.accepted = {&nowhere, {c.sequences}};
  b.fresh = {&no_byte, {c.sequences}};
  b.slot = {&nowhere, {c.sequences, c.columns}};
  b.pages = {&nowhere, {c.sequences, c.pages}};
  b.logit_row = {&nowhere, {c.logit_rows}};
  return b;
}

}  // namespace kdelta::runtime
