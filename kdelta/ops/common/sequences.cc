#include "kdelta/ops/common/sequences.h"

#include <algorithm>
#include <array>
#include <span>
#include <tuple>
#include <vector>

#include "kdelta/core/check.h"

namespace kdelta {
namespace {

[[noreturn]] void refuse(const char* op, const std::string& what) {
  fail(ErrorCode::invalid_argument, op, ": ", what);
}

void check_boundaries(const Sequences& s, int64_t tokens, const char* op) {
  const int32_t* cu = s.cu.data;
  if (cu[0] != 0) refuse(op, str("cu[0] is ", cu[0], ", expected 0"));
  for (int64_t n = 0; n < s.count(); ++n)
    if (cu[n + 1] < cu[n])
      refuse(op, str("cu[", n + 1, "] is ", cu[n + 1], " after ", cu[n], ", expected no decrease"));
  if (cu[s.count()] > tokens) refuse(op, str("cu ends at ", cu[s.count()], ", past the ", tokens, " rows"));
}

// Who uses a slot: a row with one of its columns, or a snapshot.
struct Claim {
  int32_t slot;
  int32_t column;  // -1: a snapshot
  int64_t owner;   // row or snapshot number
  bool same_owner(const Claim& o) const { return owner == o.owner && (column < 0) == (o.column < 0); }
  std::string place() const {
    return column < 0 ? str("snapshot[", owner, ", 2]") : str("slot[", owner, ", ", column, "]");
  }
  std::string name() const { return str(column < 0 ? "snapshot " : "row ", owner); }
};

// Collects every slot that is read or written; two owners may not share one. A step of usual size stays in the inline
// array: this runs once per layer and op, and a step in steady state allocates nothing.
class SlotOwners {
 public:
  SlotOwners(int64_t slots, const char* op) : slots_(slots), op_(op) {}

  void claim(const Claim& c) {
    if (c.slot < 1 || c.slot >= slots_) refuse(op_, str(c.place(), " is ", c.slot, ", expected 1..", slots_ - 1));
    if (count_ < kInline) {
      inline_[count_++] = c;
      return;
    }
    if (more_.empty()) more_.assign(inline_.begin(), inline_.end());
    more_.push_back(c);
  }

  void check_distinct() {
    const std::span<Claim> claims = more_.empty() ? std::span(inline_.data(), count_) : std::span(more_);
    std::sort(claims.begin(), claims.end(), [](const Claim& a, const Claim& b) {
      return std::tuple(a.slot, a.column < 0, a.owner) < std::tuple(b.slot, b.column < 0, b.owner);
    });
    for (size_t i = 1; i < claims.size(); ++i)
      if (claims[i].slot == claims[i - 1].slot && !claims[i].same_owner(claims[i - 1]))
        refuse(op_, str("slot ", claims[i].slot, " is named by ", claims[i - 1].name(), " and ", claims[i].name()));
  }

 private:
  static constexpr size_t kInline = 128;
  int64_t slots_;
  const char* op_;
  size_t count_ = 0;
  std::array<Claim, kInline> inline_;
  std::vector<Claim> more_;
};

void check_row(const Sequences& s, int64_t n, SlotColumns columns, SlotOwners& owners, const char* op) {
  const int64_t len = s.cu.data[n + 1] - s.cu.data[n];
  if (*s.slot.at(n, 0) == -1 || len == 0) return;
  const int32_t accepted = s.accepted.data[n];
  if (accepted < 1 || accepted > s.columns())
    refuse(op, str("accepted[", n, "] is ", accepted, ", expected 1..", s.columns()));
  const bool decode = n >= s.n_prefill;
  if (decode && len > s.columns())
    refuse(op, str("decode row ", n, " has ", len, " tokens and ", s.columns(), " state columns"));
  const int32_t written = decode && columns == SlotColumns::all ? static_cast<int32_t>(len) : 1;
  for (int32_t c = 0; c < written; ++c) owners.claim({*s.slot.at(n, c), c, n});
  if (columns == SlotColumns::all && s.fresh.data[n] == 0 && accepted > written)
    owners.claim({*s.slot.at(n, accepted - 1), accepted - 1, n});
}

void check_snapshot(const Sequences& s, int64_t q, SlotOwners& owners, const char* op) {
  const int32_t n = *s.snapshot.at(q, 0), position = *s.snapshot.at(q, 1), slot = *s.snapshot.at(q, 2);
  if (slot == -1) return;  // padding
  if (n < 0 || n >= s.n_prefill)
    refuse(op, str("snapshot[", q, ", 0] names sequence ", n, ", expected a prefill sequence, 0..", s.n_prefill - 1));
  const int64_t len = s.cu.data[n + 1] - s.cu.data[n];
  if (position < 1 || position > len)
    refuse(op, str("snapshot[", q, ", 1] is ", position, ", expected a token of the sequence, 1..", len));
  owners.claim({slot, -1, q});
}

// Builds the argument's name only when the check fails: the happy path allocates nothing.
template <class V>
void expect(const V& v, const Shape& want, const char* op, const char* argument) {
  const bool dense = v.shape.rank == 0 || v.shape.numel() == 0 || v.stride[static_cast<size_t>(v.shape.rank - 1)] == 1;
  if (v.shape == want && dense && (v.data != nullptr || v.shape.numel() == 0)) return;
  expect_view(v, want, str(op, ": ", argument).c_str());
}

}  // namespace

void expect_sequences(const Sequences& s, const char* op) {
  if (s.slot.shape.rank != 2 || s.slot.dim(1) < 1)
    refuse(op, str("slot: shape ", to_string(s.slot.shape), ", expected [N, columns]"));
  const int64_t N = s.count();
  expect(s.cu, {N + 1}, op, "cu");
  expect(s.slot, {N, s.columns()}, op, "slot");
  expect(s.accepted, {N}, op, "accepted");
  expect(s.fresh, {N}, op, "fresh");
  if (!s.snapshot.null()) expect(s.snapshot, {s.snapshot.dim(0), 3}, op, "snapshot");
  if (s.n_prefill < 0 || s.n_decode < 0 || int64_t{s.n_prefill} + s.n_decode > N)
    refuse(op, str(s.n_prefill, " prefill and ", s.n_decode, " decode sequences of ", N));
}

void validate_sequences(const Sequences& s, int64_t tokens, int64_t slots, const char* op, SlotColumns columns) {
  check_boundaries(s, tokens, op);
  const int64_t live = s.n_prefill + s.n_decode;
  if (s.cu.data[live] != s.cu.data[s.count()])
    refuse(op, str("rows from ", live, " on hold tokens but are neither prefill nor decode"));
  SlotOwners owners(slots, op);
  for (int64_t n = 0; n < live; ++n) check_row(s, n, columns, owners, op);
  const int64_t Q = s.snapshot.null() ? 0 : s.snapshot.dim(0);
  for (int64_t q = 0; q < Q; ++q) check_snapshot(s, q, owners, op);
  owners.check_distinct();
}

}  // namespace kdelta
