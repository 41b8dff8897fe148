#include "kdelta/ops/common/sequences.h"

#include <algorithm>
#include <vector>

#include "kdelta/core/check.h"

namespace kdelta {
namespace {

[[noreturn]] void refuse(const char* op, const std::string& what) { fail(ErrorCode::invalid_argument, op, ": ", what); }

void check_boundaries(const Sequences& s, int64_t tokens, const char* op) {
  const int32_t* cu = s.cu.data;
  if (cu[0] != 0) refuse(op, str("cu[0] is ", cu[0], ", expected 0"));
  for (int64_t n = 0; n < s.count(); ++n)
    if (cu[n + 1] < cu[n]) refuse(op, str("cu[", n + 1, "] is ", cu[n + 1], " after ", cu[n], ", expected no decrease"));
  if (cu[s.count()] > tokens) refuse(op, str("cu ends at ", cu[s.count()], ", past the ", tokens, " rows"));
}

// Collects every slot that is read or written; two rows may not share one.
class SlotOwners {
 public:
  SlotOwners(int64_t slots, const char* op) : slots_(slots), op_(op) {}
  void claim(int64_t row, int64_t column, int32_t slot) {
    if (slot < 1 || slot >= slots_)
      refuse(op_, str("slot[", row, ", ", column, "] is ", slot, ", expected 1..", slots_ - 1));
    owners_.push_back({slot, row});
  }
  void check_distinct() {
    std::sort(owners_.begin(), owners_.end());
    for (size_t i = 1; i < owners_.size(); ++i)
      if (owners_[i].first == owners_[i - 1].first && owners_[i].second != owners_[i - 1].second)
        refuse(op_, str("slot ", owners_[i].first, " is named by rows ", owners_[i - 1].second, " and ", owners_[i].second));
  }

 private:
  int64_t slots_;
  const char* op_;
  std::vector<std::pair<int32_t, int64_t>> owners_;
};

void check_row(const Sequences& s, int64_t n, SlotOwners& owners, const char* op) {
  const int64_t len = s.cu.data[n + 1] - s.cu.data[n];
  if (*s.slot.at(n, 0) == -1 || len == 0) return;
  const int32_t accepted = s.accepted.data[n];
  if (accepted < 1 || accepted > s.columns())
    refuse(op, str("accepted[", n, "] is ", accepted, ", expected 1..", s.columns()));
  const bool decode = n >= s.n_prefill;
  if (decode && len > s.columns())
    refuse(op, str("decode row ", n, " has ", len, " tokens and ", s.columns(), " state columns"));
  const int64_t written = decode ? len : 1;
  for (int64_t c = 0; c < written; ++c) owners.claim(n, c, *s.slot.at(n, c));
  if (s.fresh.data[n] == 0 && accepted > written) owners.claim(n, accepted - 1, *s.slot.at(n, accepted - 1));
}

}  // namespace

void expect_sequences(const Sequences& s, const char* op) {
  const std::string at = std::string(op) + ": ";
  if (s.slot.shape.rank != 2 || s.slot.dim(1) < 1)
    refuse(op, str("slot: shape ", to_string(s.slot.shape), ", expected [N, columns]"));
  const int64_t N = s.count();
  expect_view(s.cu, {N + 1}, (at + "cu").c_str());
  expect_view(s.slot, {N, s.columns()}, (at + "slot").c_str());
  expect_view(s.accepted, {N}, (at + "accepted").c_str());
  expect_view(s.fresh, {N}, (at + "fresh").c_str());
  if (!s.snapshot.null()) expect_view(s.snapshot, {s.snapshot.dim(0), 3}, (at + "snapshot").c_str());
  if (s.n_prefill < 0 || s.n_decode < 0 || s.n_prefill + s.n_decode > N)
    refuse(op, str(s.n_prefill, " prefill and ", s.n_decode, " decode sequences of ", N));
}

void validate_sequences(const Sequences& s, int64_t tokens, int64_t slots, const char* op) {
  check_boundaries(s, tokens, op);
  const int64_t live = s.n_prefill + s.n_decode;
  if (s.cu.data[live] != s.cu.data[s.count()])
    refuse(op, str("rows from ", live, " on hold tokens but are neither prefill nor decode"));
  SlotOwners owners(slots, op);
  for (int64_t n = 0; n < live; ++n) check_row(s, n, owners, op);
  const int64_t Q = s.snapshot.null() ? 0 : s.snapshot.dim(0);
  for (int64_t q = 0; q < Q; ++q) {
    const int32_t n = *s.snapshot.at(q, 0), position = *s.snapshot.at(q, 1), slot = *s.snapshot.at(q, 2);
    if (slot == -1) continue;  // padding
    if (n < 0 || n >= s.n_prefill) refuse(op, str("snapshot ", q, " names sequence ", n, ", expected 0..", s.n_prefill - 1));
    const int64_t len = s.cu.data[n + 1] - s.cu.data[n];
    if (position < 1 || position > len) refuse(op, str("snapshot ", q, " at token ", position, " of ", len));
    owners.claim(s.count() + q, 2, slot);  // a snapshot slot has no other user
  }
  owners.check_distinct();
}

}  // namespace kdelta
