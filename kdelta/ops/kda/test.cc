// Slots, rows, cuts and refusals: what must hold for every variant whatever the numbers are.
#include "kdelta/ops/kda/test_problem.h"

namespace kdelta {
namespace {

using test::Problem;
using test::Row;
using test::Sizes;
using test::State;
using test::TestExec;

class Kda : public test::VariantTest {
 protected:
  Kda() { ex.force("kda", GetParam()); }
  TestExec ex;
};
KDELTA_INSTANTIATE_VARIANTS(Kda, kda_variants());

template <class P>
bool same_slot(const P& a, int64_t sa, const P& b, int64_t sb) {
  return std::memcmp(a.slot_data(sa), b.slot_data(sb), a.slot_bytes()) == 0;
}
template <class P>
bool same_out(const P& a, int64_t ta, const P& b, int64_t tb, int64_t count) {
  return std::memcmp(a.out_row(ta), b.out_row(tb), a.out_bytes(count)) == 0;
}

// Runs tokens [from, from + len) of `whole` as one prefill that starts from slot 1 of `before` (or fresh).
template <class P>
P part(TestExec& ex, const P& whole, const P* before, int64_t from, int64_t len) {
  P p(whole.z, {Row{.len = len, .fresh = before == nullptr}});
  p.copy_tokens(whole, from, 0, len);
  if (before != nullptr) p.copy_slot(*before, 1, 1);
  p.run(ex);
  return p;
}

TEST_P(Kda, AgreesWithTheOracleAtEverySizeOfKeyValueAndLength) {
  const std::vector<int64_t> lengths = {1,  2,  15, 16, 17, 31, 32,  33,  47,  48, 49,
                                        63, 64, 65, 79, 80, 81, 127, 128, 129, 130};
  size_t next = 0;
  for (int64_t K : {16, 60, 64, 100, 128})
    for (int64_t V : {16, 37, 64, 100, 130}) {
      const int64_t T0 = lengths[next++ % lengths.size()], T1 = lengths[next++ % lengths.size()];
      Problem<> p({.H = 1, .K = K, .V = V}, {Row{.len = T0}, Row{.len = T1, .fresh = 1}}, {Row{.len = 1}});
      State s = p.state_of(1), f = p.zero_state(), d = p.state_of(3);
      const auto o0 = p.oracle(s, 0, T0), o1 = p.oracle(f, T0, T1), o2 = p.oracle(d, T0 + T1, 1);
      p.run(ex);
      const std::string what = str("K ", K, " V ", V, " T ", T0, " ", T1);
      EXPECT_LE(test::relative_rmse(p.outputs(0, T0), o0), 2 * test::out_bound(GetParam())) << what;
      EXPECT_LE(test::relative_rmse(p.outputs(T0, T1), o1), 2 * test::out_bound(GetParam())) << what;
      EXPECT_LE(test::relative_rmse(p.outputs(T0 + T1, 1), o2), 4e-3) << what;
      EXPECT_LE(test::relative_rmse(p.state_of(1), s), test::state_bound(GetParam())) << what;
      EXPECT_LE(test::relative_rmse(p.state_of(2), f), test::state_bound(GetParam())) << what;
      EXPECT_LE(test::relative_rmse(p.state_of(3), d), 1e-6) << what;
    }
}

// The vectors of the architecture notes, computed by hand in double precision.
TEST_P(Kda, GivesTheHandComputedVectorsOfBothGates) {
  struct Want {
    KdaGate kind;
    double o2[2], s1[4], s2[4];  // states as [key, value]
  };
  for (const Want& w : {Want{KdaGate::bounded,
                             {-0.1050092, 0.1649814},
                             {0.3, 0.6, 0.4, 0.8},
                             {-0.1776709, 0.1749881, -0.1485055, 0.2333190}},
                        Want{KdaGate::softplus,
                             {-0.0650460, 0.2449077},
                             {0.3, 0.6, 0.4, 0.8},
                             {-0.1702902, 0.1897496, -0.0919890, 0.3463520}}}) {
    for (bool prefill : {true, false}) {
      const Row row{.len = 2, .fresh = 1};
      const Sizes z{.H = 1, .K = 2, .V = 2, .columns = 2};
      Problem<> p = prefill ? Problem<>(z, {row}) : Problem<>(z, {}, {row});
      const float q[] = {1, 0, 0, 1}, k[] = {3, 4, 1, 1}, v[] = {1, 2, -1, 1}, g[] = {0.5f, -0.5f, 1, 0},
                  b[] = {0.5f, 0.25f};
      for (int i = 0; i < 4; ++i)
        p.q[i] = to_bf16(q[i]), p.k[i] = to_bf16(k[i]), p.v[i] = to_bf16(v[i]), p.gate[i] = to_bf16(g[i]);
      for (int i = 0; i < 2; ++i) p.beta[i] = to_bf16(b[i]), p.dt_bias[i] = 0;
      p.a_log[0] = std::log(2.0f);
      p.beta_kind = KdaBeta::preprocessed;
      p.gate_kind = w.kind;
      p.run(ex);
      const double tolerance = 1e-6 + (test::is_chunk(GetParam()) && prefill ? 3e-3 : 0);
      const State s = p.state_of(prefill ? 1 : 2);
      EXPECT_NEAR(to_float(p.out[0]), 0.2121319, 2e-3);
      EXPECT_NEAR(to_float(p.out[1]), 0.4242638, 2e-3);
      for (size_t i = 0; i < 2; ++i) EXPECT_NEAR(to_float(p.out[2 + static_cast<int64_t>(i)]), w.o2[i], 2e-3);
      for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(s[i], w.s2[i], tolerance);
      for (size_t i = 0; !prefill && i < 4; ++i) EXPECT_NEAR(p.state_of(1)[i], w.s1[i], tolerance);
    }
  }
}

template <class P>
void cut_on_the_grid(TestExec& ex) {
  const P whole({.H = 2, .K = 128, .V = 64}, {Row{.len = 200, .fresh = 1}});
  const auto all = part<P>(ex, whole, nullptr, 0, 200);
  for (const std::vector<int64_t>& cuts :
       {std::vector<int64_t>{64, 200}, {128, 200}, {192, 200}, {64, 128, 192, 200}}) {
    std::optional<P> before;
    int64_t at = 0;
    for (int64_t cut : cuts) {
      auto p = part<P>(ex, whole, before ? &*before : nullptr, at, cut - at);
      EXPECT_TRUE(same_out(p, 0, all, at, cut - at)) << "rows " << at << ".." << cut;
      before.emplace(std::move(p));
      at = cut;
    }
    EXPECT_TRUE(same_slot(*before, 1, all, 1));
  }
}

TEST_P(Kda, APrefillCutAtMultiplesOf64IsTheSameBitForBit) {
  cut_on_the_grid<Problem<>>(ex);
  cut_on_the_grid<Problem<bf16, bf16>>(ex);
}

TEST_P(Kda, APrefillCutAnywhereStaysWithinTheBound) {
  const Problem<> whole({.H = 1, .K = 64, .V = 64}, {Row{.len = 130, .fresh = 1}});
  State s = whole.zero_state();
  const auto o = whole.oracle(s, 0, 130);
  for (int64_t cut : {1, 15, 16, 17, 63, 65, 100, 129}) {
    const auto a = part<Problem<>>(ex, whole, nullptr, 0, cut);
    const auto b = part<Problem<>>(ex, whole, &a, cut, 130 - cut);
    auto got = a.outputs(0, cut);
    const auto rest = b.outputs(0, 130 - cut);
    got.insert(got.end(), rest.begin(), rest.end());
    EXPECT_LE(test::relative_rmse(got, o), test::out_bound(GetParam())) << "cut " << cut;
    EXPECT_LE(test::relative_rmse(b.state_of(1), s), test::state_bound(GetParam())) << "cut " << cut;
  }
}

TEST_P(Kda, PrefillThenOneStepIsTheLongerPrefillWithinTheBound) {
  for (int64_t T : {1, 16, 63, 64, 100}) {
    const Problem<> whole({.H = 2, .K = 64, .V = 48}, {Row{.len = T + 1, .fresh = 1}});
    const auto longer = part<Problem<>>(ex, whole, nullptr, 0, T + 1);
    const auto shorter = part<Problem<>>(ex, whole, nullptr, 0, T);
    Problem<> step(whole.z, {}, {Row{.len = 1}});
    step.copy_tokens(whole, T, 0, 1);
    step.copy_slot(shorter, 1, 1);
    step.run(ex);
    EXPECT_LE(test::relative_rmse(step.outputs(0, 1), longer.outputs(T, 1)), 2 * test::out_bound(GetParam())) << T;
    EXPECT_LE(test::relative_rmse(step.state_of(1), longer.state_of(1)), 2 * test::state_bound(GetParam())) << T;
  }
}

TEST_P(Kda, NoRowDependsOnALaterTokenByABit) {
  const Problem<> whole({.H = 2, .K = 64, .V = 48}, {Row{.len = 130, .fresh = 1}});
  const auto all = part<Problem<>>(ex, whole, nullptr, 0, 130);
  for (int64_t t : {1, 5, 16, 18, 33, 64, 67, 100, 129})
    EXPECT_TRUE(same_out(part<Problem<>>(ex, whole, nullptr, 0, t), 0, all, 0, t)) << t;
}

TEST_P(Kda, CompanyAndThreadsChangeNoBitOfARow) {
  const Sizes z{.H = 3, .K = 64, .V = 130, .columns = 3};
  Problem<> all(z, {Row{.len = 70}, Row{.len = 0}, Row{.len = 33, .fresh = 1}},
                {Row{.len = 1}, Row{.len = 3, .accepted = 2}});
  const Problem<> before = all;
  all.run(ex);
  for (int threads : {1, 5})
    for (int64_t r = 0; r < all.n(); ++r) {
      TestExec other(threads);
      other.force("kda", GetParam());
      const Row& row = all.rows[static_cast<size_t>(r)];
      Row alone_row = row;
      alone_row.slots.clear();
      const bool prefill = r < all.n_prefill;
      Problem<> alone = prefill ? Problem<>(z, {alone_row}) : Problem<>(z, {}, {alone_row});
      alone.copy_tokens(before, before.begin(r), 0, row.len);
      for (int64_t c = 0; c < z.columns; ++c) alone.copy_slot(before, row.slots[static_cast<size_t>(c)], 1 + c);
      alone.run(other);
      EXPECT_TRUE(same_out(alone, 0, all, all.begin(r), row.len)) << "row " << r;
      for (int64_t c = 0; c < z.columns; ++c)
        EXPECT_TRUE(same_slot(alone, 1 + c, all, row.slots[static_cast<size_t>(c)])) << "row " << r << " column " << c;
    }
}

template <class S>
void verify_equals_steps(TestExec& ex, int64_t len) {
  const Sizes z{.H = 2, .K = 100, .V = 37, .columns = len};
  Problem<bf16, S> verify(z, {}, {Row{.len = len, .accepted = static_cast<int32_t>(len)}});
  Problem<bf16, S> step({.H = 2, .K = 100, .V = 37}, {}, {Row{.len = 1}});
  step.copy_slot(verify, len, 1);  // column accepted - 1
  const Problem<bf16, S> tokens = verify;
  verify.run(ex);
  for (int64_t i = 0; i < len; ++i) {
    step.copy_tokens(tokens, i, 0, 1);
    step.run(ex);
    EXPECT_TRUE(same_out(step, 0, verify, i, 1)) << "token " << i;
    EXPECT_TRUE(same_slot(step, 1, verify, 1 + i)) << "column " << i;
    // Accepting i + 1 tokens: the next step starts there.
    Problem<bf16, S> next(z, {}, {Row{.len = 1, .accepted = static_cast<int32_t>(i + 1)}}), single = step;
    next.copy_tokens(tokens, 0, 0, 1);
    single.copy_tokens(tokens, 0, 0, 1);
    for (int64_t c = 0; c < len; ++c) next.copy_slot(verify, 1 + c, 1 + c);
    next.run(ex);
    single.run(ex);
    EXPECT_TRUE(same_out(single, 0, next, 0, 1));
    EXPECT_TRUE(same_slot(single, 1, next, 1));
    for (int64_t c = 1; c < len; ++c)
      EXPECT_TRUE(same_slot(next, 1 + c, verify, 1 + c)) << "a single step wrote column " << c;
  }
}

TEST_P(Kda, VerifyingDraftsHasTheBitsOfSingleStepsForEveryAcceptedCount) {
  verify_equals_steps<float>(ex, 5);
  verify_equals_steps<bf16>(ex, 5);
  verify_equals_steps<float>(ex, 70);
}

TEST_P(Kda, APrefillStartsAtItsAcceptedColumnAndWritesColumnZeroOnly) {
  const Sizes z{.H = 2, .K = 60, .V = 40, .columns = 3};
  Problem<> p(z, {Row{.len = 20, .accepted = 3}});
  const Problem<> before = p;
  Problem<> plain({.H = 2, .K = 60, .V = 40}, {Row{.len = 20}});
  plain.copy_tokens(before, 0, 0, 20);
  plain.copy_slot(before, 3, 1);
  p.run(ex);
  plain.run(ex);
  EXPECT_TRUE(same_out(p, 0, plain, 0, 20));
  EXPECT_TRUE(same_slot(p, 1, plain, 1));
  EXPECT_TRUE(same_slot(p, 2, before, 2) && same_slot(p, 3, before, 3));
}

TEST_P(Kda, SnapshotsHoldTheBitsOfAShorterPrefill) {
  for (int64_t K : {128, 60}) {
    const Sizes z{.H = 2, .K = K, .V = 70, .slots = 12};
    Problem<> p(z, {Row{.len = 150, .slots = {1}}, Row{.len = 20, .slots = {2}, .fresh = 1}});
    const Problem<> before = p;
    const int32_t table[][3] = {{0, 1, 3},   {0, 64, 4}, {0, 70, 5}, {0, 80, 6},
                                {0, 150, 7}, {1, 16, 8}, {1, 19, 9}, {9, 9, -1}};
    p.snapshot.emplace(Shape{8, 3});
    for (int64_t i = 0; i < 24; ++i) (*p.snapshot)[i] = table[i / 3][i % 3];
    p.run(ex);
    for (const auto& s : table) {
      if (s[2] == -1) continue;
      Problem<> alone(z, {Row{.len = s[1], .slots = {1}, .fresh = static_cast<uint8_t>(s[0])}});
      alone.copy_tokens(before, before.begin(s[0]), 0, s[1]);
      alone.copy_slot(before, 1 + s[0], 1);
      alone.run(ex);
      EXPECT_TRUE(same_slot(alone, 1, p, s[2])) << "sequence " << s[0] << " after " << s[1] << " tokens";
    }
    EXPECT_TRUE(same_slot(before, 10, p, 10)) << "a padded snapshot wrote";
  }
}

TEST_P(Kda, PoisonInUnusedSlotsFreshSlotsAndRowsOfNobodyChangesNothing) {
  const Sizes z{.H = 2, .K = 60, .V = 36, .tail = 5, .slots = 9, .columns = 2};
  Problem<> p(z, {Row{.len = 35, .slots = {3, -1}, .fresh = 1}}, {Row{.len = 1, .slots = {5, 6}, .fresh = 1}});
  Problem<> clean = p;
  for (int64_t s : {1, 2, 3, 4, 5, 6, 7, 8})
    for (int64_t i = 0; i < z.H * z.V * z.K; ++i) p.slot_data(s)[i] = NAN;
  const Problem<> before = p;
  p.run(ex);
  clean.run(ex);
  EXPECT_TRUE(same_out(p, 0, clean, 0, p.T));
  EXPECT_TRUE(same_slot(p, 3, clean, 3));
  EXPECT_TRUE(same_slot(p, 5, clean, 5));
  for (int64_t s : {0, 1, 2, 4, 6, 7, 8}) EXPECT_TRUE(same_slot(p, s, before, s)) << "slot " << s;
  for (double o : p.outputs(36, 5)) EXPECT_EQ(o, 0);
  for (double o : p.outputs(0, 36)) EXPECT_TRUE(std::isfinite(o));
}

TEST_P(Kda, EmptySequencesKeepTheirStateAndTheirNeighbours) {
  for (const std::vector<int64_t>& lens : {std::vector<int64_t>{0}, {0, 5}, {5, 0}, {5, 0, 4}, {0, 0, 0, 0}})
    for (int64_t decode : {0, 1}) {
      std::vector<Row> rows;
      for (int64_t len : lens) rows.push_back({.len = decode == 1 && len > 0 ? 1 : len, .fresh = len == 0});
      const Sizes z{.H = 4, .K = 16, .V = 16};
      Problem<> p = decode == 1 ? Problem<>(z, {}, rows) : Problem<>(z, rows);
      const Problem<> before = p;
      p.run(ex);
      for (int64_t r = 0; r < p.n(); ++r) {
        EXPECT_EQ(same_slot(p, 1 + r, before, 1 + r), lens[static_cast<size_t>(r)] == 0) << "row " << r;
      }
      for (double o : p.outputs(0, p.covered())) EXPECT_TRUE(std::isfinite(o));
    }
}

TEST_P(Kda, APaddedRowTouchesNoSlotAndItsOutputIsZero) {
  for (const std::vector<int32_t>& slots : {std::vector<int32_t>{2, -1}, {-1, -1}, {-1, 3}}) {
    Problem<> p({.H = 2, .K = 16, .V = 16, .slots = 4}, {},
                {Row{.len = 1, .slots = {slots[0]}}, Row{.len = 1, .slots = {slots[1]}}});
    const Problem<> before = p;
    p.run(ex);
    for (int32_t s = 0; s < 4; ++s)
      EXPECT_EQ(same_slot(p, s, before, s), s != slots[0] && s != slots[1]) << "slot " << s;
    for (int64_t r = 0; r < 2; ++r)
      for (double o : p.outputs(r, 1)) EXPECT_EQ(o == 0, slots[static_cast<size_t>(r)] == -1);
  }
}

TEST_P(Kda, NaNStaysInItsSequence) {
  const Sizes z{.H = 2, .K = 64, .V = 40};
  for (int64_t bad : {3, 60}) {
    Problem<> p(z, {Row{.len = 50}, Row{.len = 40}}, {Row{.len = 1}});
    const Problem<> before = p;
    Problem<> clean = p;
    p.v[bad * z.H * z.V + 5] = to_bf16(NAN);
    p.run(ex);
    clean.run(ex);
    const int64_t sick = bad < 50 ? 0 : 1;
    EXPECT_FALSE(std::isfinite(p.state_of(1 + sick)[5]));
    for (int64_t r = 0; r < 3; ++r) {
      if (r == sick) continue;
      EXPECT_TRUE(same_out(p, p.begin(r), clean, p.begin(r), p.rows[static_cast<size_t>(r)].len)) << "row " << r;
      EXPECT_TRUE(same_slot(p, 1 + r, clean, 1 + r)) << "row " << r;
    }
    EXPECT_TRUE(same_out(p, p.begin(sick), clean, p.begin(sick), bad - p.begin(sick))) << "rows before the NaN";
  }
}

TEST_P(Kda, StridedViewsHaveTheBitsOfDenseOnes) {
  const Sizes z{.H = 3, .K = 60, .V = 44};
  Problem<> dense(z, {Row{.len = 37}}, {Row{.len = 1}});
  Problem<> strided = dense;
  const int64_t T = dense.T, qw = z.H * z.K, vw = z.H * z.V, wide = 2 * qw + vw + 5;
  test::Guarded<bf16> merged({T, wide}), gates({T, qw + 7}), betas({T, z.H + 2}), outs({T, z.H, z.V + 3});
  test::Guarded<float> pool({dense.z.slots, 2 * z.H * z.V * z.K + 8});
  const int64_t slots = dense.z.slots, slot_stride = 2 * z.H * z.V * z.K + 8;
  for (int64_t t = 0; t < T; ++t) {
    for (int64_t i = 0; i < qw; ++i) {
      merged[t * wide + i] = dense.q[t * qw + i];
      merged[t * wide + qw + i] = dense.k[t * qw + i];
      gates[t * (qw + 7) + i] = dense.gate[t * qw + i];
    }
    for (int64_t i = 0; i < vw; ++i) merged[t * wide + 2 * qw + i] = dense.v[t * vw + i];
    for (int64_t h = 0; h < z.H; ++h) betas[t * (z.H + 2) + h] = dense.beta[t * z.H + h];
  }
  KdaArgs a = strided.args();
  const AnyConstView m = merged.view();
  a.q = m.columns(0, qw).split_last(z.H, z.K);
  a.k = m.columns(qw, qw).split_last(z.H, z.K);
  a.v = m.columns(2 * qw, vw).split_last(z.H, z.V);
  a.gate = AnyConstView(gates.view()).columns(0, qw).split_last(z.H, z.K);
  a.beta = AnyConstView(betas.view()).columns(0, z.H);
  a.out = AnyView(outs.view()).columns(0, z.V);
  a.state.data = pool.data();
  a.state.stride[0] = slot_stride;
  ASSERT_LE(slots * slot_stride, pool.size());
  for (int64_t s = 0; s < slots; ++s)
    std::memcpy(pool.data() + s * slot_stride, dense.slot_data(s), dense.slot_bytes());
  dense.run(ex);
  kda(ex, a);
  for (int64_t t = 0; t < T; ++t)
    for (int64_t h = 0; h < z.H; ++h) {
      const int64_t at = (t * z.H + h) * (z.V + 3);
      EXPECT_EQ(std::memcmp(&outs[at], dense.out_row(t) + h * z.V, static_cast<size_t>(z.V) * sizeof(bf16)), 0);
      for (int64_t i = z.V; i < z.V + 3; ++i) EXPECT_EQ(outs[at + i].bits, 0xffff) << "the gap of out was written";
    }
  for (int64_t s = 0; s < slots; ++s)
    EXPECT_EQ(std::memcmp(pool.data() + s * slot_stride, dense.slot_data(s), dense.slot_bytes()), 0) << "slot " << s;
}

// Token and slot strides past 2^31 elements in memory that is reserved, not used: a 32-bit product would land
// elsewhere.
TEST_P(Kda, OffsetsPast32BitsReachTheirTokensAndSlots) {
  const Sizes z{.H = 1, .K = 16, .V = 16, .tail = 0};
  Problem<> p(z, {Row{.len = 3}});
  KdaArgs far = p.args();
  constexpr int64_t kToken = (int64_t{1} << 31) + 64, kSlot = (int64_t{1} << 31) + 128;
  test::SparseMemory q(3 * kToken * 2), state(2 * kSlot * 4);
  for (int64_t t = 0; t < 3; ++t)
    std::memcpy(q.data() + t * kToken * 2, &p.q[t * z.K], static_cast<size_t>(z.K) * sizeof(bf16));
  std::memcpy(state.data() + kSlot * 4, p.slot_data(1), p.slot_bytes());
  far.q.data = q.data();
  far.q.stride[0] = kToken;
  far.state.data = state.data();
  far.state.stride[0] = kSlot;
  far.state.shape = Shape{2, z.H, z.V, z.K};
  Problem<> near = p;
  near.run(ex);
  kda(ex, far);
  EXPECT_TRUE(same_out(p, 0, near, 0, 3));
  EXPECT_EQ(std::memcmp(state.data() + kSlot * 4, near.slot_data(1), near.slot_bytes()), 0);
}

TEST_P(Kda, GateAndBetaMayBeF32BesideBf16Activations) {
  const Sizes z{.H = 2, .K = 64, .V = 32};
  Problem<> p(z, {Row{.len = 40}}, {Row{.len = 1}});
  const Problem<> before = p;
  test::Guarded<float> gate({p.T, z.H, z.K}), beta({p.T, z.H});
  for (int64_t i = 0; i < gate.size(); ++i) gate[i] = to_float(p.gate[i]);
  for (int64_t i = 0; i < beta.size(); ++i) beta[i] = to_float(p.beta[i]);
  Problem<> wide = p;
  KdaArgs a = wide.args();
  a.gate = gate.view();
  a.beta = beta.view();
  p.run(ex);
  kda(ex, a);
  EXPECT_TRUE(same_out(p, 0, wide, 0, p.T));
  EXPECT_TRUE(same_slot(p, 1, wide, 1));
  EXPECT_TRUE(same_slot(p, 2, wide, 2));
}

TEST(KdaRefuses, FaultsOfTheBatchBeforeAnythingIsWritten) {
  TestExec ex;
  const Sizes z{.H = 1, .K = 16, .V = 16, .slots = 6, .columns = 2};
  Problem<> p(z, {Row{.len = 5, .slots = {1, -1}}}, {Row{.len = 2, .slots = {2, 3}}});
  const Problem<> before = p;
  auto with = [&](auto change) {
    Problem<> bad = before;
    change(bad);
    const std::string message = test::error_of([&] { kda(ex, bad.args()); });
    EXPECT_TRUE(same_bits(bad.out, before.out)) << message;
    EXPECT_TRUE(same_bits(bad.state, before.state)) << message;
    return message;
  };
  using testing::HasSubstr;
  EXPECT_THAT(with([](auto& b) { b.cu[1] = 9; }), HasSubstr("kda: cu[2]"));
  EXPECT_THAT(with([](auto& b) { b.cu[0] = 1; }), HasSubstr("kda: cu[0]"));
  EXPECT_THAT(with([](auto& b) { b.cu[2] = 99; }), HasSubstr("past the"));
  EXPECT_THAT(with([](auto& b) { b.slot[0] = 6; }), HasSubstr("kda: slot[0, 0] is 6, expected 1..5"));
  EXPECT_THAT(with([](auto& b) { b.slot[0] = 0; }), HasSubstr("kda: slot[0, 0] is 0"));
  EXPECT_THAT(with([](auto& b) { b.slot[2] = 1; }), HasSubstr("slot 1 is named by row 0 and row 1"));
  EXPECT_THAT(with([](auto& b) { b.slot[3] = -1; }), HasSubstr("kda: slot[1, 1]"));
  EXPECT_THAT(with([](auto& b) { b.accepted[1] = 3; }), HasSubstr("accepted[1] is 3, expected 1..2"));
  EXPECT_THAT(with([](auto& b) { b.accepted[1] = 0; }), HasSubstr("accepted[1] is 0"));
  EXPECT_THAT(with([](auto& b) {
                b.snapshot.emplace(Shape{1, 3});
                (*b.snapshot)[0] = 0, (*b.snapshot)[1] = 6, (*b.snapshot)[2] = 4;
              }),
              HasSubstr("snapshot[0, 1] is 6"));
  EXPECT_THAT(with([](auto& b) {
                b.snapshot.emplace(Shape{1, 3});
                (*b.snapshot)[0] = 0, (*b.snapshot)[1] = 2, (*b.snapshot)[2] = 2;
              }),
              HasSubstr("slot 2 is named by"));
}

TEST(KdaRefuses, WrongArgumentsByName) {
  TestExec ex;
  Problem<> p({.H = 2, .K = 16, .V = 24}, {Row{.len = 5}});
  const KdaArgs good = p.args();
  auto with = [&](auto change) {
    KdaArgs a = good;
    change(a);
    return test::error_of([&] { kda(ex, a); });
  };
  using testing::HasSubstr;
  EXPECT_EQ(with([](KdaArgs& a) { a.lower_bound = 0; }), "kda: lower_bound: 0, expected in [-5, 0)");
  EXPECT_EQ(with([](KdaArgs& a) { a.lower_bound = -5.5f; }), "kda: lower_bound: -5.5, expected in [-5, 0)");
  EXPECT_THAT(with([](KdaArgs& a) { a.lower_bound = NAN; }), HasSubstr("kda: lower_bound"));
  EXPECT_THAT(with([](KdaArgs& a) { a.scale = INFINITY; }), HasSubstr("kda: scale"));
  EXPECT_THAT(with([](KdaArgs& a) { a.v.shape.dim[1] = 4; }),
              HasSubstr("kda: v: shape [8, 4, 24], expected [8, 2, 24]"));
  EXPECT_THAT(with([](KdaArgs& a) { a.q.dtype = a.k.dtype = a.v.dtype = a.out.dtype = DType::f16; }),
              HasSubstr("kda: q: dtype F16"));
  EXPECT_THAT(with([](KdaArgs& a) { a.k.dtype = DType::f32; }), HasSubstr("kda: k: dtype F32"));
  EXPECT_THAT(with([](KdaArgs& a) { a.out.dtype = DType::f32; }), HasSubstr("kda: out: dtype F32"));
  EXPECT_THAT(with([](KdaArgs& a) { a.gate.stride[2] = 2; }), HasSubstr("kda: gate: stride 2"));
  EXPECT_THAT(with([](KdaArgs& a) {
                a.dt_bias.shape = Shape{2, 15};
              }),
              HasSubstr("kda: dt_bias: shape [2, 15], expected [2, 16]"));
  EXPECT_THAT(with([](KdaArgs& a) { a.a_log.shape = Shape{1}; }), HasSubstr("kda: a_log"));
  EXPECT_THAT(with([](KdaArgs& a) { a.state.shape.dim[2] = 16; }), HasSubstr("kda: state: shape"));
  EXPECT_THAT(with([](KdaArgs& a) { a.state.dtype = DType::f16; }), HasSubstr("kda: state: dtype F16"));
  EXPECT_THAT(with([](KdaArgs& a) { a.state.stride[1] += 16; }), HasSubstr("expected dense"));
  EXPECT_THAT(with([](KdaArgs& a) { a.beta.data = nullptr; }), HasSubstr("kda: beta: null pointer"));
}

TEST(KdaChoice, TakesTheBestRowAndKeepsF32OffThe16BitOperands) {
  Options options;
  KdaDesc d{.target = {.isa = IsaLevel::amx, .threads = 2}, .T = 64, .N = 1, .H = 2, .K = 128, .V = 128};
  auto name = [&] { return std::string(choose("kda", kda_variants(), d, options).name); };
  EXPECT_EQ(name(), "chunk_int16");
  d.activation = DType::f32;
  EXPECT_EQ(name(), "avx512");
  d.activation = DType::bf16;
  d.target.isa = IsaLevel::avx512;
  EXPECT_EQ(name(), "avx512");
  d.target.isa = IsaLevel::avx2;
  EXPECT_EQ(name(), "avx2");
  d.target.isa = IsaLevel::portable;
  EXPECT_EQ(name(), "portable");
}

TEST(KdaPlanning, TouchesNothingAndAsksForAllThatASmallerCallTakes) {
  TestExec ex;
  Problem<> big({.H = 2, .K = 64, .V = 130}, {Row{.len = 100}, Row{.len = 30}});
  const Problem<> before = big;
  Arena plan = Arena::measuring(Device{});
  Exec planning = ex.exec();
  planning.planning = true;
  planning.scratch = &plan;
  KdaArgs nowhere = big.args();
  kda(planning, nowhere);
  EXPECT_TRUE(same_bits(big.out, before.out));
  EXPECT_TRUE(same_bits(big.state, before.state));
  for (int64_t V : {1, 64, 130}) {
    Problem<> small({.H = 1, .K = 64, .V = V}, {Row{.len = 65}});
    small.run(ex);
  }
  EXPECT_LE(ex.arena().peak(), plan.peak());
}

// How many segments cuda_chunk cuts a sequence into depends on the tokens of the call, hence on company.
TEST(KdaChoice, ExactModeRefusesTheRowWhoseCutsDependOnTheCall) {
  KdaDesc d{.K = 128, .V = 128, .n_prefill = 1, .aligned = true};
  EXPECT_EQ(kda_cuda_chunk_refuse(d), nullptr);
  d.exact = true;
  EXPECT_STREQ(kda_cuda_chunk_refuse(d), "exact mode: it cuts sequences by the tokens of the whole call");
  EXPECT_EQ(kda_cuda_serial_refuse(d), nullptr);
  d.n_prefill = 0;
  EXPECT_EQ(kda_cuda_chunk_refuse(d), nullptr) << "decode rows are not cut";
}

}  // namespace
}  // namespace kdelta
