#include "kdelta/runtime/state_arrays.h"

#include <algorithm>

#include "kdelta/core/check.h"

namespace kdelta::runtime {
namespace {

std::string list(const int32_t* values, int64_t count) {
  std::string out;
  for (int64_t i = 0; i < count && values[i] != -1; ++i) out = i == 0 ? str(values[i]) : str(out, " ", values[i]);
  return count == 0 || values[0] == -1 ? str("none") : out;
}

class SlotArrays final : public StateArrays {
 public:
  explicit SlotArrays(const BatchCapacity& c) : c_(c) {}
  int64_t ints() const override {
    return c_.sequences * (c_.columns + 1) + c_.snapshots * 3 + (c_.sequences + 3) / 4;  // fresh has bytes
  }
  void bind(int32_t* memory) override {
    slot_ = memory;
    accepted_ = slot_ + c_.sequences * c_.columns;
    snapshot_ = accepted_ + c_.sequences;
    fresh_ = reinterpret_cast<uint8_t*>(snapshot_ + c_.snapshots * 3);
  }
  void begin() override { snapshots_ = 0; }
  void fill(int64_t n, const BatchRow& row) override {
    const Request& r = *row.request;
    const auto held = static_cast<int64_t>(r.slots.size());
    KDELTA_CHECK(held == c_.columns || held == 1, "request ", r.id, " holds ", held, " slots");
    KDELTA_CHECK(r.accepted >= 1 && r.accepted <= c_.columns, "request ", r.id, " accepted ", r.accepted);
    int32_t* slots = slot_ + n * c_.columns;
    std::fill(std::copy(r.slots.begin(), r.slots.end(), slots), slots + c_.columns, -1);  // where drafts have no slots
    accepted_[n] = r.accepted;
    fresh_[n] = r.computed == 0 ? 1 : 0;
    for (const RowSnapshot& s : row.snapshots) {
      KDELTA_CHECK(snapshots_ < c_.snapshots && row.prefill, "snapshot ", snapshots_, " of ", c_.snapshots);
      int32_t* out = snapshot_ + 3 * snapshots_++;
      out[0] = static_cast<int32_t>(n), out[1] = s.position, out[2] = s.slot;
    }
  }
  void pad(int64_t from, int64_t to) override {
    std::fill(slot_ + from * c_.columns, slot_ + to * c_.columns, -1);
    std::fill(accepted_ + from, accepted_ + to, 1);
    std::fill(fresh_ + from, fresh_ + to, uint8_t{0});
    std::fill(snapshot_ + 3 * snapshots_, snapshot_ + 3 * c_.snapshots, -1);
  }
  void attach(Batch& batch, int64_t rows, bool padded) const override {
    batch.slot = {slot_, {rows, c_.columns}};
    batch.accepted = {accepted_, {rows}};
    batch.fresh = {fresh_, {rows}};
    batch.snapshot = {snapshot_, {padded ? c_.snapshots : snapshots_, 3}};
  }
  std::string explain(int64_t n) const override {
    std::string out = str("slots ", list(slot_ + n * c_.columns, c_.columns));
    out = fresh_[n] != 0 ? str(out, ", from zero") : str(out, ", from column ", accepted_[n] - 1);
    for (int64_t q = 0; q < snapshots_; ++q)
      if (snapshot_[3 * q] == n)
        out = str(out, ", snapshot after ", snapshot_[3 * q + 1], " in slot ", snapshot_[3 * q + 2]);
    return out;
  }

 private:
  BatchCapacity c_;
  int32_t *slot_ = nullptr, *accepted_ = nullptr, *snapshot_ = nullptr;
  uint8_t* fresh_ = nullptr;
  int64_t snapshots_ = 0;
};

class PageArrays final : public StateArrays {
 public:
  explicit PageArrays(const BatchCapacity& c) : c_(c) {}
  int64_t ints() const override { return c_.sequences * c_.pages; }
  void bind(int32_t* memory) override { pages_ = memory; }
  void fill(int64_t n, const BatchRow& row) override {
    const Request& r = *row.request;
    KDELTA_CHECK(static_cast<int64_t>(r.pages.size()) <= c_.pages, "request ", r.id, " holds ", r.pages.size(),
                 " pages");
    int32_t* out = pages_ + n * c_.pages;
    std::fill(std::copy(r.pages.begin(), r.pages.end(), out), out + c_.pages, -1);
  }
  void pad(int64_t from, int64_t to) override { std::fill(pages_ + from * c_.pages, pages_ + to * c_.pages, -1); }
  void attach(Batch& batch, int64_t rows, bool) const override { batch.pages = {pages_, {rows, c_.pages}}; }
  std::string explain(int64_t n) const override { return str("pages ", list(pages_ + n * c_.pages, c_.pages)); }

 private:
  BatchCapacity c_;
  int32_t* pages_ = nullptr;
};

template <class T>
std::unique_ptr<StateArrays> make(const BatchCapacity& c) {
  return std::make_unique<T>(c);
}

struct Registered {
  StateKind kind;
  std::unique_ptr<StateArrays> (*make)(const BatchCapacity&);
};
constexpr Registered kRegistry[] = {{StateKind::slot, make<SlotArrays>}, {StateKind::page, make<PageArrays>}};

}  // namespace

std::vector<std::unique_ptr<StateArrays>> make_state_arrays(const BatchCapacity& capacity) {
  std::vector<std::unique_ptr<StateArrays>> all;
  for (const Registered& r : kRegistry) all.push_back(r.make(capacity));
  return all;
}

}  // namespace kdelta::runtime
