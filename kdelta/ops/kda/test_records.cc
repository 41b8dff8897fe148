// Verification with replay records: the same bits as with a slot per draft, and as single steps.
#include "kdelta/ops/kda/test_records.h"

namespace kdelta {
namespace {

using test::Guarded;
using test::Problem;
using test::Row;
using test::Sizes;
using test::TestExec;

struct Runner {
  TestExec& ex;
  template <class S>
  void run(Problem<bf16, S>& p) {
    p.run(ex);
  }
  template <class S>
  void replay(Problem<bf16, S>& p, Guarded<int32_t>& slot, Guarded<int32_t>& accepted) {
    kda_replay(ex, {.state = p.state.view(), .records = *p.records, .slot = slot, .accepted = accepted});
    EXPECT_TRUE(p.state.guards_intact());
  }
};

class KdaRecords : public test::VariantTest {
 protected:
  KdaRecords() { ex.force("kda", GetParam()); }
  TestExec ex;
  Runner on{ex};
};
KDELTA_INSTANTIATE_VARIANTS(KdaRecords, kda_variants());

TEST_P(KdaRecords, HaveTheBitsOfSingleStepsForEveryAcceptedCount) {
  test::every_accepted_count<float>(on, {.H = 2, .K = 60, .V = 37, .slots = 3, .columns = 17}, {1, 2, 3, 5, 16, 17});
  test::every_accepted_count<bf16>(on, {.H = 2, .K = 60, .V = 37, .slots = 3, .columns = 17}, {1, 2, 9, 17});
  test::every_accepted_count<float>(on, {.H = 1, .K = 128, .V = 128, .slots = 3, .columns = 5}, {5});
  test::every_accepted_count<bf16>(on, {.H = 1, .K = 128, .V = 128, .slots = 3, .columns = 5}, {5});
  test::every_accepted_count<float>(on, {.H = 1, .K = 16, .V = 20, .slots = 3, .columns = 1}, {1});
}

// More drafts than a chunk of tokens holds: there is no fixed limit.
TEST_P(KdaRecords, HaveTheBitsOfSingleStepsPastAChunkOfDrafts) {
  test::every_accepted_count<float>(on, {.H = 1, .K = 20, .V = 19, .slots = 3, .columns = 70}, {64, 65, 70});
}

// A head whose value channels two threads share: no part writes a record that another has yet to replay.
TEST_P(KdaRecords, HaveTheBitsOfSingleStepsWhenThreadsShareAHead) {
  for (int threads : {2, 5}) {
    TestExec team(threads);
    team.force("kda", GetParam());
    Runner all{team};
    for (int repeat = 0; repeat < 20; ++repeat)
      test::every_accepted_count<float>(all, {.H = 1, .K = 64, .V = 200, .slots = 3, .columns = 4}, {4});
  }
}

TEST_P(KdaRecords, ContinueAnyHistoryWithTheBitsOfASlotPerDraft) {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    test::any_history<float>(on, seed);
    test::any_history<bf16>(on, seed);
  }
}

TEST_P(KdaRecords, ServeMixedBatchesRowByRow) {
  test::mixed_batch(on, 40, 52);
}
TEST_P(KdaRecords, HoldDecayKeyAndChange) {
  test::contents_of_records(on, 24, 20);
}
TEST_P(KdaRecords, ARejectedDraftOfNaNsChangesNothing) {
  test::rejected_nans(on, 36, 30);
}

TEST(KdaRecordsRefuse, FaultsOfTheBatchBeforeAnythingIsWritten) {
  TestExec ex;
  const Sizes z{.H = 1, .K = 16, .V = 16, .slots = 6, .columns = 3};
  Problem<> p(z, {Row{.len = 5, .slots = {1}}}, {Row{.len = 3, .slots = {2}}});
  p.keep_records();
  for (int64_t i = 0; i < p.records->size(); ++i) (*p.records)[i] = 0.25f;
  const Problem<> before = p;
  const auto with = [&](auto change) {
    Problem<> bad = before;
    change(bad);
    const std::string message = test::error_of([&] { kda(ex, bad.args()); });
    EXPECT_TRUE(same_bits(bad.out, before.out)) << message;
    EXPECT_TRUE(same_bits(bad.state, before.state)) << message;
    EXPECT_TRUE(same_bits(*bad.records, *before.records)) << message;
    return message;
  };
  using testing::HasSubstr;
  for (const int32_t accepted : {0, -1, 4, 1000000})
    EXPECT_THAT(with([&](auto& b) { b.accepted[1] = accepted; }),
                HasSubstr(str("kda: accepted[1] is ", accepted, ", expected 1..3")));
  EXPECT_THAT(with([](auto& b) { b.slot[3] = 1; }), HasSubstr("slot 1 is named by row 0 and row 1"));
  EXPECT_THAT(with([](auto& b) { b.slot[3] = 6; }), HasSubstr("kda: slot[1, 0] is 6, expected 1..5"));
  EXPECT_THAT(with([](auto& b) { b.slot[3] = 0; }), HasSubstr("kda: slot[1, 0] is 0"));
  p.slot[4] = p.slot[5] = 77;
  EXPECT_EQ(test::error_of([&] { kda(ex, p.args()); }), "no error") << "other columns are not looked at";
}

TEST(KdaRecordsRefuse, WrongArgumentsByName) {
  TestExec ex;
  Problem<> p({.H = 2, .K = 16, .V = 24, .slots = 4, .columns = 3}, {}, {Row{.len = 2, .slots = {1}}});
  p.keep_records();
  const KdaArgs good = p.args();
  const auto with = [&](auto change) {
    KdaArgs a = good;
    change(a);
    return test::error_of([&] { kda(ex, a); });
  };
  EXPECT_EQ(with([](KdaArgs& a) { a.records.shape.dim[1] = 3; }),
            "kda: records: shape [4, 3, 2, 56], expected [4, 2, 2, 56]");
  EXPECT_EQ(with([](KdaArgs& a) { a.records.shape.dim[3] = 40; }),
            "kda: records: shape [4, 2, 2, 40], expected [4, 2, 2, 56]");
  EXPECT_THAT(with([](KdaArgs& a) { a.records.stride[2] = 64; }),
              testing::HasSubstr("kda: records: record and head strides"));

  Guarded<int32_t> slot({2}), accepted({2});
  slot[0] = 1, slot[1] = 2, accepted[0] = 2, accepted[1] = 3;
  const Problem<> before = p;
  const auto replay = [&](auto change) {
    KdaReplayArgs a{.state = p.state.view(), .records = *p.records, .slot = slot, .accepted = accepted};
    Guarded<int32_t> s = slot, n = accepted;
    a.slot = s, a.accepted = n;
    change(a, s, n);
    const std::string message = test::error_of([&] { kda_replay(ex, a); });
    EXPECT_TRUE(same_bits(p.state, before.state)) << message;
    return message;
  };
  EXPECT_EQ(replay([](auto&, auto&, auto& n) { n[1] = 4; }), "kda_replay: accepted[1] is 4, expected 1..3");
  EXPECT_EQ(replay([](auto&, auto&, auto& n) { n[0] = 0; }), "kda_replay: accepted[0] is 0, expected 1..3");
  EXPECT_EQ(replay([](auto&, auto& s, auto&) { s[1] = 4; }), "kda_replay: slot[1] is 4, expected 1..3");
  EXPECT_EQ(replay([](auto&, auto& s, auto&) { s[1] = 0; }), "kda_replay: slot[1] is 0, expected 1..3");
  EXPECT_EQ(replay([](auto&, auto& s, auto&) { s[1] = 1; }), "kda_replay: slot 1 is named by row 0 and row 1");
  EXPECT_EQ(replay([](auto& a, auto&, auto&) { a.records.shape.dim[3] = 40; }),
            "kda_replay: records: shape [4, 2, 2, 40], expected [4, 2, 2, 56]");
  EXPECT_EQ(replay([](auto& a, auto&, auto&) { a.state.dtype = DType::f16; }),
            "kda_replay: state: dtype F16, accepted: F32, BF16");
  EXPECT_EQ(replay([](auto& a, auto&, auto&) { a.accepted.shape = Shape{1}; }),
            "kda_replay: accepted: shape [1], expected [2]");
}

TEST(KdaCost, CountsWhatEveryDraftOfAVerificationLeavesBehind) {
  const Sizes sizes{.H = 2, .K = 64, .V = 32, .tail = 0, .slots = 12, .columns = 5};
  const double state = 2 * 64 * 32 * 4, record = 2 * (2 * 64 + 32) * 4;
  const auto bytes = [&](int64_t len, bool records, bool prefill) {
    const Row a{.len = len, .slots = {1, 2, 3, 4, 5}}, b{.len = len, .slots = {6, 7, 8, 9, 10}};
    Problem<> p = prefill ? Problem<>(sizes, {a, b}) : Problem<>(sizes, {}, {a, b});
    if (records) p.keep_records();
    return kda_cost(p.args()).bytes;
  };
  // What tokens take beside states: the difference of two prefills.
  const double token = (bytes(5, false, true) - bytes(1, false, true)) / 8;
  EXPECT_GT(token, 0);
  for (const bool records : {false, true}) {
    EXPECT_EQ(bytes(1, records, false), bytes(1, records, true)) << "plain decode";
    EXPECT_EQ(bytes(5, records, false) - bytes(1, records, false), 8 * (token + (records ? record : state)));
  }
}

TEST(KdaRecordsPlanning, AsksForAllThatASmallerCallTakes) {
  TestExec ex(4);
  Problem<> big({.H = 2, .K = 64, .V = 130, .slots = 12, .columns = 5}, {},
                {Row{.len = 5, .slots = {1}}, Row{.len = 5, .slots = {2}}});
  big.keep_records();
  const Problem<> before = big;
  Arena plan = Arena::measuring(Device{});
  Exec planning = ex.exec();
  planning.planning = true;
  planning.scratch = &plan;
  kda(planning, big.args());
  EXPECT_TRUE(same_bits(big.state, before.state) && same_bits(big.out, before.out));
  Problem<> small({.H = 1, .K = 64, .V = 130, .slots = 12, .columns = 5}, {}, {Row{.len = 5, .slots = {1}}});
  small.keep_records();
  small.run(ex);
  EXPECT_LE(ex.arena().peak(), plan.peak());
}

}  // namespace
}  // namespace kdelta
