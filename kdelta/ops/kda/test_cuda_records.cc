// Verification with records on CUDA: the bits of a slot per draft and of single steps, on every row of the device.
#include <functional>

#include "kdelta/ops/kda/test_cuda_problem.h"
#include "kdelta/ops/kda/test_records.h"

namespace kdelta::test {
namespace {

uint32_t bit(Fault f) {
  return static_cast<uint32_t>(f);
}

// A call's rows on the device, with what kda_replay is told beside them.
template <class S>
class Commit {
 public:
  Commit(Problem<bf16, S>& p, Guarded<int32_t>& slot, Guarded<int32_t>& accepted, Stream& stream)
      : on_(p, stream), slot_(kCuda, slot.size() * 4), accepted_(kCuda, slot.size() * 4), stream_(stream) {
    args_ = {.state = on_.args().state, .records = on_.args().records};
    args_.slot = slot_.view<int32_t>(slot.shape()), args_.accepted = accepted_.view<int32_t>(slot.shape());
    tell(slot, accepted);
  }
  void tell(Guarded<int32_t>& slot, Guarded<int32_t>& accepted) {
    copy_async(stream_, slot_.data(), slot.data(), slot_.bytes());
    copy_async(stream_, accepted_.data(), accepted.data(), accepted_.bytes());
  }
  const KdaReplayArgs& args() const { return args_; }
  Uploaded<bf16, S>& on() { return on_; }

 private:
  Uploaded<bf16, S> on_;
  Buffer slot_, accepted_;
  Stream& stream_;
  KdaReplayArgs args_;
};

struct Runner {
  CudaExec& ex;
  uint32_t faults = 0;  // what a call has to raise
  template <class S>
  void run(Problem<bf16, S>& p) {
    Uploaded<bf16, S> on(p, ex.stream());
    kda(ex, on.args());
    EXPECT_EQ(fault_names(ex.take_faults()), fault_names(faults));
    on.fetch();
  }
  template <class S>
  void replay(Problem<bf16, S>& p, Guarded<int32_t>& slot, Guarded<int32_t>& accepted) {
    const Guarded<float> before = *p.records;
    Commit<S> commit(p, slot, accepted, ex.stream());
    kda_replay(ex, commit.args());
    EXPECT_EQ(fault_names(ex.take_faults()), fault_names(faults));
    commit.on().fetch();
    EXPECT_TRUE(same_bits(before, *p.records));
  }
};

class KdaCudaRecords : public testing::Test {
 protected:
  // Every CUDA row of the device with widths it takes.
  void for_each_row(const std::function<void(bool portable)>& f) {
    int ran = 0;
    for (const KdaVariant& row : kda_variants()) {
      if (machine_refusal(row, EffectCase::device_target()) != nullptr) continue;
      SCOPED_TRACE(row.name);
      ex.force("kda", row.name);
      f(is_portable(row.name));
      ++ran;
    }
    EXPECT_GE(ran, 3);
  }
  CudaExec ex{int64_t{1} << 30};
  Runner on{ex};
};

TEST_F(KdaCudaRecords, HaveTheBitsOfSingleStepsForEveryAcceptedCount) {
  for_each_row([&](bool portable) {
    const Sizes wide{.H = 2, .K = 128, .V = 128, .slots = 3, .columns = 17};
    every_accepted_count<float>(on, wide, {1, 2, 3, 5, 9, 16, 17});
    every_accepted_count<bf16>(on, wide, {2, 8, 17});
    if (!portable) return;
    every_accepted_count<float>(on, {.H = 2, .K = 60, .V = 37, .slots = 3, .columns = 9}, {1, 2, 5, 9});
    every_accepted_count<bf16>(on, {.H = 1, .K = 200, .V = 130, .slots = 3, .columns = 5}, {5});
    every_accepted_count<float>(on, {.H = 1, .K = 16, .V = 20, .slots = 3, .columns = 1}, {1});
  });
}

TEST_F(KdaCudaRecords, ContinueAnyHistoryWithTheBitsOfASlotPerDraft) {
  for_each_row([&](bool portable) {
    for (uint64_t seed = 0; seed < 4; ++seed) {
      any_history<float>(on, seed, portable ? 0 : 128);
      any_history<bf16>(on, seed, portable ? 0 : 128);
    }
  });
}

TEST_F(KdaCudaRecords, ServeMixedBatchesRowByRow) {
  for_each_row([&](bool) { mixed_batch(on, 128, 128); });
}
TEST_F(KdaCudaRecords, HoldDecayKeyAndChange) {
  for_each_row([&](bool) { contents_of_records(on, 128, 128); });
}
TEST_F(KdaCudaRecords, ARejectedDraftOfNaNsChangesNothing) {
  for_each_row([&](bool) { rejected_nans(on, 128, 128); });
}

// Rows of every length that keep every number of drafts, step behind step, more of them than the device has places for:
// the parts of a head meet its records in any order.
template <class S>
void ragged_steps(Runner& on, int64_t H, int64_t rows) {
  constexpr int64_t kColumns = 3;
  std::vector<int32_t> accepted(static_cast<size_t>(rows), 1);
  std::optional<Problem<bf16, S>> before;
  std::optional<Problem<bf16, S>> other;
  for (uint64_t step = 0; step < 3; ++step) {
    std::vector<Row> one, many;
    for (int64_t n = 0; n < rows; ++n) {
      Row r{.len = 1 + static_cast<int64_t>((static_cast<uint64_t>(n) + step * 3) % kColumns),
            .slots = {static_cast<int32_t>(n + 1)},
            .accepted = accepted[static_cast<size_t>(n)]};
      one.push_back(r);
      for (int64_t c = 1; c < kColumns; ++c) r.slots.push_back(static_cast<int32_t>(rows + n * (kColumns - 1) + c));
      many.push_back(r);
    }
    Problem<bf16, S> records({.H = H, .K = 128, .V = 128, .slots = rows + 1, .columns = kColumns}, {}, one, step);
    Problem<bf16, S> slots({.H = H, .K = 128, .V = 128, .slots = rows * kColumns + 1, .columns = kColumns}, {}, many,
                           step);
    slots.copy_tokens(records, 0, 0, records.covered());
    records.keep_records();
    if (before) {
      records.state = before->state, records.records = before->records, slots.state = other->state;
    } else {
      for (int32_t n = 1; n <= rows; ++n) slots.copy_slot(records, n, n);
    }
    on.run(records);
    on.run(slots);
    ASSERT_EQ(std::memcmp(records.out_row(0), slots.out_row(0), records.out_bytes(records.covered())), 0) << step;
    for (size_t n = 0; n < accepted.size(); ++n) {
      const int64_t len = one[n].len;
      accepted[n] = static_cast<int32_t>(1 + static_cast<int64_t>(n / 3 + step) % len);
      ASSERT_EQ(std::memcmp(records.slot_data(static_cast<int64_t>(n) + 1),
                            slots.slot_data(static_cast<int64_t>(n) + 1), records.slot_bytes()),
                0)
          << "row " << n << " step " << step;
    }
    Problem<bf16, S> committed = records;
    Guarded<int32_t> slot({rows}), kept({rows});
    for (int64_t n = 0; n < rows; ++n)
      slot[n] = static_cast<int32_t>(n + 1), kept[n] = accepted[static_cast<size_t>(n)];
    on.replay(committed, slot, kept);
    for (size_t n = 0; n < accepted.size(); ++n)
      ASSERT_EQ(std::memcmp(committed.slot_data(static_cast<int64_t>(n) + 1),
                            slots.slot_data(many[n].slots[static_cast<size_t>(accepted[n] - 1)]), slots.slot_bytes()),
                0)
          << "row " << n << " step " << step;
    before = std::move(records), other = std::move(slots);
  }
}

TEST_F(KdaCudaRecords, ServeRaggedBatchesThatFillTheDevice) {
  for (const char* variant : {"cuda_chunk", "cuda_portable"}) {
    SCOPED_TRACE(variant);
    ex.force("kda", variant);
    ragged_steps<float>(on, 12, 7);
    ragged_steps<float>(on, 8, 33);
  }
  ex.force("kda", "cuda_chunk");
  ragged_steps<bf16>(on, 8, 33);
}

TEST_F(KdaCudaRecords, CapturedReplaysOnFreshInputsHaveTheBitsOfPlainCalls) {
  for_each_row([&](bool) {
    const Sizes z{.H = 3, .K = 128, .V = 128, .slots = 5, .columns = 5};
    auto make = [&](uint64_t seed) {
      const auto kept = [&](uint64_t i) { return static_cast<int32_t>(1 + (seed + i) % 5); };
      Problem<> p(z, {Row{.len = 90, .slots = {1}, .accepted = kept(1)}},
                  {Row{.len = 5, .slots = {2}, .accepted = kept(2)}, Row{.len = 3, .slots = {3}, .accepted = kept(3)},
                   Row{.len = 1, .slots = {4}, .accepted = kept(4)}},
                  seed);
      p.keep_records();
      Rng rng(seed + 9);
      fill_uniform(*p.records, rng, 0.1f, 0.9f);
      return p;
    };
    Problem<> live = make(1);
    Guarded<int32_t> slot({2}), kept({2});
    slot[0] = 2, slot[1] = 3, kept[0] = kept[1] = 1;
    Commit<float> commit(live, slot, kept, ex.stream());
    ex.stream().synchronize();
    const Graph graph = Graph::capture(ex, [&] {
      kda(ex, commit.on().args());
      kda_replay(ex, commit.args());
    });
    for (uint64_t seed : {2, 3, 4}) {
      Problem<> plain = make(seed);
      live = plain;
      on.run(plain);
      slot[0] = seed == 3 ? -1 : 2, kept[0] = static_cast<int32_t>(seed), kept[1] = 3;
      on.replay(plain, slot, kept);
      commit.on().refresh();
      commit.tell(slot, kept);
      graph.launch(ex.stream());
      commit.on().fetch();
      EXPECT_TRUE(same_bits(live.out, plain.out));
      EXPECT_TRUE(same_bits(live.state, plain.state));
      EXPECT_TRUE(same_bits(*live.records, *plain.records));
    }
    EXPECT_EQ(ex.take_faults(), 0u);
  });
}

TEST_F(KdaCudaRecords, ARowAtFaultIsSkippedWholeAndNobodyElseIsTouched) {
  for_each_row([&](bool) {
    for (const bool prefill : {false, true}) {
      std::vector<Row> rows(8, Row{.len = 2, .accepted = 2});
      const int32_t slots[] = {1, -1, 40, 3, 1, 6, 5, 0}, accepted[] = {2, 2, 2, 2, 2, 0, 4, 1};
      for (size_t r = 0; r < rows.size(); ++r) rows[r].slots = {slots[r]}, rows[r].accepted = accepted[r];
      const Sizes z{.H = 2, .K = 128, .V = 128, .slots = 10, .columns = 3};
      Problem<> p = prefill ? Problem<>(z, rows) : Problem<>(z, {}, rows);
      p.keep_records();
      for (int64_t i = 0; i < p.records->size(); ++i) (*p.records)[i] = 0.25f;
      for (int64_t r = 0; r < p.n(); ++r) p.slot[r * 3 + 1] = p.slot[r * 3 + 2] = 77;  // nobody looks at these
      Problem<> before = p;
      on.faults = bit(Fault::slot) | bit(Fault::shared_slot) | bit(Fault::accepted);
      on.run(p);
      on.faults = 0;
      for (int64_t s = 0; s < 10; ++s) {
        const bool live = s == 1 || s == 3;
        EXPECT_EQ(std::memcmp(p.slot_data(s), before.slot_data(s), p.slot_bytes()) != 0, live) << s;
        EXPECT_EQ(std::memcmp(p.record(s, 0), before.record(s, 0), 2 * static_cast<size_t>(p.record_floats()) * 4) != 0,
                  live && !prefill)
            << s;
      }
      for (const int64_t r : {1, 2, 4, 5, 6, 7})
        for (int64_t i = 0; i < 2 * 256; ++i) ASSERT_EQ(to_float(p.out_row(2 * r)[i]), 0) << r;
    }
  });
}

TEST_F(KdaCudaRecords, ACommitAtFaultIsSkippedWholeAndNobodyElseIsTouched) {
  const Sizes z{.H = 2, .K = 60, .V = 37, .slots = 8, .columns = 4};
  Problem<> p(z, {}, {Row{.len = 1, .slots = {1}}});
  p.keep_records();
  for (int64_t i = 0; i < p.records->size(); ++i) (*p.records)[i] = 0.25f;
  const Problem<> before = p;
  const int32_t slots[] = {1, 2, 8, 0, -1, 1, 3, 4, 5}, kept[] = {3, 1, 2, 2, 99, 2, 0, 5, 4};
  Guarded<int32_t> slot({9}), accepted({9});
  for (int64_t n = 0; n < 9; ++n) slot[n] = slots[n], accepted[n] = kept[n];
  on.faults = bit(Fault::slot) | bit(Fault::accepted) | bit(Fault::shared_slot);
  on.replay(p, slot, accepted);
  on.faults = 0;
  Problem<> want = before;
  TestExec cpu;
  Guarded<int32_t> good({2}), count({2});
  good[0] = 1, good[1] = 5, count[0] = 3, count[1] = 4;
  kda_replay(cpu, {.state = want.state.view(), .records = *want.records, .slot = good, .accepted = count});
  EXPECT_TRUE(same_bits(p.state, want.state)) << "the processor's roundings";
  for (const auto& [bad, fault] : {std::pair(std::pair(8, 2), Fault::slot), {{2, 5}, Fault::accepted}}) {
    good[0] = bad.first, count[0] = bad.second;
    on.faults = bit(fault);
    on.replay(p, good, count);
  }
}

}  // namespace
}  // namespace kdelta::test
