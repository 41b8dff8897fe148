#include "kdelta/runtime/batch_builder.h"

#include <algorithm>
#include <cstring>

#include "kdelta/core/check.h"

namespace kdelta::runtime {
namespace {

int64_t own_ints(const BatchCapacity& c) {
  return 2 * c.tokens + 2 * c.sequences + 1 + c.logit_rows;  // token, draft; cu, context; logit_row
}

int32_t* carve(int32_t*& cursor, int64_t count) {
  int32_t* p = cursor;
  cursor += count;
  return p;
}

}  // namespace

const Bucket* choose_bucket(std::span<const Bucket> buckets, std::span<const BatchRow> rows) {
  int64_t longest = 0, tokens = 0;
  bool mixed = false;
  for (const BatchRow& row : rows) {
    mixed |= row.prefill;
    longest = std::max(longest, row.tokens), tokens += row.tokens;
  }
  const Bucket* best = nullptr;
  for (const Bucket& b : buckets) {
    const bool fits = b.mixed() == mixed && b.rows >= static_cast<int64_t>(rows.size()) &&
                      (mixed ? b.mixed_tokens >= tokens : b.row_tokens >= longest);
    if (fits && (best == nullptr || b.tokens() < best->tokens())) best = &b;
  }
  return best;
}

int64_t BatchBuilder::bytes(const BatchCapacity& c) {
  int64_t ints = own_ints(c);
  for (const auto& s : make_state_arrays(c)) ints += s->ints();
  return ints * 4;
}

BatchBuilder::BatchBuilder(Device device, const BatchCapacity& capacity, Stream* stream)
    : capacity_(capacity),
      stream_(stream),
      host_(device, bytes(capacity)),
      device_(device, stream == nullptr ? 0 : bytes(capacity)),
      states_(make_state_arrays(capacity)) {
  KDELTA_CHECK((device.kind == DeviceKind::cuda) == (stream != nullptr), "batches on ", to_string(device));
  std::memset(host_.data(), 0, static_cast<size_t>(host_.bytes()));
  auto* cursor = host_.as<int32_t>();
  token_ = carve(cursor, capacity.tokens);
  draft_ = carve(cursor, capacity.tokens);
  cu_ = carve(cursor, capacity.sequences + 1);
  context_ = carve(cursor, capacity.sequences);
  logit_row_ = carve(cursor, capacity.logit_rows);
  for (const auto& s : states_) s->bind(carve(cursor, s->ints()));
  logit_owner_.reserve(static_cast<size_t>(capacity.logit_rows));
}

void BatchBuilder::fill_row(int64_t n, const BatchRow& row, int64_t first) {
  const Request& r = *row.request;
  const int64_t end = r.computed + row.tokens;
  KDELTA_CHECK(row.tokens >= 1 && end - row.drafts <= r.known() && row.drafts <= r.drafts, "request ", r.id, " has ",
               r.known(), " tokens and ", r.drafts, " drafts, planned to ", end, " with ", row.drafts);
  KDELTA_CHECK(row.prefill || row.tokens <= capacity_.columns, "a decode row of ", row.tokens, " tokens");
  for (int64_t i = 0; i < row.tokens; ++i) {
    token_[first + i] = r.token(r.computed + i);
    draft_[first + i] = i + 1 < row.tokens && i + 1 >= row.tokens - row.drafts ? r.token(r.computed + i + 1) : -1;
  }
  cu_[n + 1] = static_cast<int32_t>(first + row.tokens);
  context_[n] = static_cast<int32_t>(r.computed);
  for (const auto& s : states_) s->fill(n, row);
}

void BatchBuilder::want_logits(int64_t n, const BatchRow& row, int64_t first, bool all) {
  const bool complete = row.request->computed + row.tokens - row.drafts == row.request->known();
  const int64_t wanted = all ? row.tokens : complete ? 1 + row.drafts : 0;
  for (int64_t i = first + row.tokens - wanted; i < first + row.tokens; ++i) {
    KDELTA_CHECK(static_cast<int64_t>(logit_owner_.size()) < capacity_.logit_rows, "more logit rows than ",
                 capacity_.logit_rows);
    logit_row_[logit_owner_.size()] = static_cast<int32_t>(i);
    logit_owner_.push_back(static_cast<int>(n));
  }
}

void BatchBuilder::pad(int64_t live_rows, int64_t live_tokens, const Bucket* bucket) {
  const int64_t N = bucket->rows, T = bucket->tokens();
  std::fill(token_ + live_tokens, token_ + T, -1);
  std::fill(draft_ + live_tokens, draft_ + T, -1);
  std::fill(cu_ + live_rows + 1, cu_ + N + 1, static_cast<int32_t>(live_tokens));
  std::fill(context_ + live_rows, context_ + N, 0);
  if (!bucket->mixed()) std::fill(logit_row_ + logit_owner_.size(), logit_row_ + T, -1);
  for (const auto& s : states_) s->pad(live_rows, N);
}

void BatchBuilder::attach(int64_t rows, int64_t tokens, int64_t logit_rows) {
  batch_.token = {token_, {tokens}};
  batch_.draft = {draft_, {tokens}};
  batch_.cu = {cu_, {rows + 1}};
  batch_.context = {context_, {rows}};
  batch_.logit_row = {logit_row_, {logit_rows}};
}

const Batch& BatchBuilder::build(std::span<const BatchRow> rows, bool all_logits, const Bucket* bucket) {
  const auto N = static_cast<int64_t>(rows.size());
  KDELTA_CHECK(N <= capacity_.sequences, N, " rows of ", capacity_.sequences);
  KDELTA_CHECK(bucket == nullptr ||
                   (bucket->rows >= N && bucket->rows <= capacity_.sequences && bucket->tokens() <= capacity_.tokens &&
                    (bucket->mixed() || bucket->tokens() <= capacity_.logit_rows)),
               "a bucket of other size");
  batch_ = Batch{};
  logit_owner_.clear();
  for (const auto& s : states_) s->begin();
  int64_t T = 0;
  cu_[0] = 0;
  for (int64_t n = 0; n < N; ++n) {
    const BatchRow& row = rows[static_cast<size_t>(n)];
    KDELTA_CHECK(n == 0 || !row.prefill || rows[static_cast<size_t>(n - 1)].prefill,
                 "a prefill row behind a decode row");
    KDELTA_CHECK(T + row.tokens <= (bucket != nullptr ? bucket->tokens() : capacity_.tokens), "more tokens than ",
                 capacity_.tokens);
    fill_row(n, row, T);
    want_logits(n, row, T, all_logits);
    (row.prefill ? batch_.n_prefill : batch_.n_decode) += 1;
    batch_.max_len = std::max(batch_.max_len, row.tokens);
    batch_.max_context = std::max(batch_.max_context, row.request->computed + row.tokens);
    T += row.tokens;
  }
  live_rows_ = N;
  if (bucket != nullptr) pad(N, T, bucket);
  const int64_t M =
      bucket != nullptr && !bucket->mixed() ? bucket->tokens() : static_cast<int64_t>(logit_owner_.size());
  attach(bucket != nullptr ? bucket->rows : N, bucket != nullptr ? bucket->tokens() : T, M);
  for (const auto& s : states_) s->attach(batch_, batch_.sequences(), bucket != nullptr);
  if (stream_ != nullptr) upload(bucket);
  return batch_;
}

// The arrays lie on the device as they lie here.
void BatchBuilder::upload(const Bucket* bucket) {
  copy_async(*stream_, device_.data(), host_.data(), host_.bytes());
  const auto there = [&](auto& view) {
    const auto offset = reinterpret_cast<const char*>(view.data) - host_.as<char>();
    view.data = reinterpret_cast<decltype(view.data)>(static_cast<char*>(device_.data()) + offset);
  };
  there(batch_.token), there(batch_.draft), there(batch_.cu), there(batch_.context), there(batch_.logit_row);
  there(batch_.slot), there(batch_.accepted), there(batch_.fresh), there(batch_.pages), there(batch_.snapshot);
  if (bucket == nullptr) return;
  batch_.n_decode = static_cast<int>(bucket->rows) - (bucket->mixed() ? batch_.n_prefill : 0);
  if (bucket->mixed()) {  // what bounds an idle step is not nothing
    batch_.max_len = std::max<int64_t>(batch_.max_len, 1);
    batch_.max_context = std::max<int64_t>(batch_.max_context, 1);
    return;
  }
  batch_.max_len = bucket->row_tokens;
  batch_.max_context = capacity_.pages * capacity_.page_tokens;
}

std::string BatchBuilder::explain() const {
  const int64_t N = batch_.sequences(), prefills = batch_.n_prefill;
  std::string out = str("  rows 0..", live_rows_, " of ", N, ": prefill 0..", prefills, ", decode ", prefills, "..",
                        live_rows_, "; tokens: prefill 0..", cu_[prefills], ", decode ", cu_[prefills], "..",
                        cu_[live_rows_], ", padding ", cu_[live_rows_], "..", batch_.tokens(), "\n");
  for (int64_t n = 0; n < live_rows_; ++n) {
    out += str("  row ", n, ": tokens ", cu_[n], "..", cu_[n + 1], ", context ", context_[n]);
    for (const auto& s : states_) out += ", " + s->explain(n);
    out += str(", logits ", std::count(logit_owner_.begin(), logit_owner_.end(), static_cast<int>(n)), "\n");
  }
  return out;
}

Batch BatchBuilder::planning(const BatchCapacity& c, bool decode) {
  // One address for all: planning ops check shapes and pointers and touch nothing.
  static int32_t nowhere = 0;
  static uint8_t no_byte = 0;
  Batch b;
  const int64_t T = decode ? std::min(c.tokens, c.sequences * c.columns) : c.tokens;
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
  b.snapshot = {&nowhere, {c.snapshots, 3}};
  return b;
}

}  // namespace kdelta::runtime
