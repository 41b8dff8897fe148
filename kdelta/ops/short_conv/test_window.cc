// The carried window: cuts, drafts, snapshots, padding and faults.
#include <gtest/gtest.h>

#include "kdelta/ops/short_conv/test_case.h"

namespace kdelta {
namespace {

using test::ConvRows;
using test::ConvWorld;
using test::Guarded;
using test::TestExec;

class ShortConvWindow : public test::OpVariantTest {
 protected:
  ShortConvWindow() : OpVariantTest("short_conv") {}
};
KDELTA_INSTANTIATE_VARIANTS(ShortConvWindow, short_conv_variants());

// The last W-1 of the first `count` rows of x, zeros in front.
template <class E>
bool window_is(const ConvWorld<E>& w, int64_t slot, int64_t first_row, const Guarded<E>& x, int64_t count) {
  const std::vector<E> zeros(static_cast<size_t>(w.C), E{});
  for (int64_t j = 0; j < w.W - 1; ++j) {
    const int64_t i = count - (w.W - 1) + j;
    const E* want = i < 0 ? zeros.data() : x.data() + i * w.C;
    if (!test::equal_bits(w.window(slot, first_row + j), want, w.C)) return false;
  }
  return true;
}

template <class E>
void cuts_equal_one_call(TestExec& ex, int64_t W) {
  constexpr int64_t T = 9, C = 37;
  ConvWorld<E> w(W, C, 1, 4);
  Guarded<E> x = w.inputs(T);
  ConvRows whole;
  whole.prefill(T, 1, true);
  const Guarded<E> want = w.run(ex, x, whole);
  EXPECT_TRUE(window_is(w, 1, 0, x, T));
  for (unsigned mask = 0; mask < (1u << (T - 1)); ++mask) {  // bit i: a cut behind token i; every way to cut
    ConvWorld<E> cut(W, C, 1, 4);
    int64_t begin = 0;
    for (int64_t end = 1; end <= T; ++end) {
      if (end < T && (mask >> (end - 1) & 1) == 0) continue;
      ConvRows rows;
      const int len = static_cast<int>(end - begin);
      if (len == 1 && mask % 2 == 0)
        rows.decode(len, 2, 1, begin == 0);
      else
        rows.prefill(len, 2, begin == 0);
      Guarded<E> piece = test::rows_of(x, begin, len);
      const Guarded<E> out = cut.run(ex, piece, rows);
      ASSERT_TRUE(test::equal_bits(out.data(), want.data() + begin * C, len * C))
          << "cuts " << mask << " tokens from " << begin;
      ASSERT_TRUE(window_is(cut, 2, 0, x, end)) << "cuts " << mask << " after " << end;
      begin = end;
    }
  }
}

TEST_P(ShortConvWindow, EveryCutOfASequenceIntoCallsEqualsOneCallBitForBit) {
  for (int64_t W : {2, 3, 4}) {
    cuts_equal_one_call<float>(ex, W);
    cuts_equal_one_call<bf16>(ex, W);
  }
}

TEST_P(ShortConvWindow, FreshIgnoresWhatTheSlotHeld) {
  ConvWorld<float> w(4, 18);  // every slot is NaN
  Guarded<float> x = w.inputs(3);
  ConvRows rows;
  rows.prefill(2, 1, true).decode(1, 2, 1, true);
  const Guarded<float> out = w.run(ex, x, rows);
  for (int64_t i = 0; i < out.size(); ++i) EXPECT_TRUE(std::isfinite(out[i]));
  const Guarded<float> x0 = test::rows_of(x, 0, 2), x1 = test::rows_of(x, 2, 1);
  EXPECT_TRUE(window_is(w, 1, 0, x0, 2));
  EXPECT_TRUE(window_is(w, 2, 0, x1, 1));
}

TEST_P(ShortConvWindow, AFreshRowWithoutTokensWritesNothing) {
  ConvWorld<float> w(4, 18, 2);
  const Guarded<float> before = w.state;
  ConvRows rows(2);
  rows.prefill(0, 1, true).decode(0, 2, 1, true);
  Guarded<float> x = w.inputs(0);
  w.run(ex, x, rows);
  EXPECT_TRUE(same_bits(w.state, before));
}

// A request that verifies drafts: of the L tokens of a step only the first m are true, the others are drafts that get
// rejected. `steps` are (L, m); the last step may be any mixture. Everything is compared with the history of accepted
// tokens alone.
template <class E>
void verify_steps(TestExec& ex, int64_t W, const std::vector<std::pair<int, int>>& steps) {
  constexpr int64_t C = 21, prompt = 5;
  constexpr int columns = 5;
  int64_t total = prompt;
  for (const auto& [L, m] : steps) total += m;
  ConvWorld<E> w(W, C, columns, 3), plain(W, C, 1, 3);
  Guarded<E> x = w.inputs(total);
  ConvRows whole, first(columns);
  whole.prefill(static_cast<int>(total), 1, true);
  const Guarded<E> want = plain.run(ex, x, whole);
  Guarded<E> head = test::rows_of(x, 0, prompt);
  w.run(ex, head, first.prefill(prompt, 1, true));
  int64_t done = prompt;
  int accepted = 1;
  for (const auto& [L, m] : steps) {
    Guarded<E> tokens({L, C});
    fill_normal(tokens, w.rng, 100.0f);  // drafts that will be rejected
    std::memcpy(tokens.data(), x.data() + done * C, static_cast<size_t>(m * C) * sizeof(E));
    ConvRows rows(columns);
    const Guarded<E> out = w.run(ex, tokens, rows.decode(L, 1, accepted));
    ASSERT_TRUE(test::equal_bits(out.data(), want.data() + done * C, m * C))
        << "after " << done << " tokens, L " << L << " m " << m;
    done += m;
    accepted = m;
    ASSERT_TRUE(window_is(w, 1, accepted - 1, x, done)) << "after " << done << " tokens, L " << L << " m " << m;
  }
  // Then a prefill from the accepted row, as after a turn: it writes its window to row 0.
  Guarded<E> tail = w.inputs(2), both({total + 2, C});
  std::memcpy(both.data(), x.data(), static_cast<size_t>(total * C) * sizeof(E));
  std::memcpy(both.data() + total * C, tail.data(), static_cast<size_t>(2 * C) * sizeof(E));
  ConvRows rows(columns), all;
  const Guarded<E> out = w.run(ex, tail, rows.prefill(2, 1, false, accepted));
  const Guarded<E> ref = plain.run(ex, both, all.prefill(static_cast<int>(total + 2), 1, true));
  EXPECT_TRUE(test::equal_bits(out.data(), ref.data() + total * C, 2 * C));
  EXPECT_TRUE(window_is(w, 1, 0, both, total + 2));
}

TEST_P(ShortConvWindow, EveryNumberOfAcceptedDraftsContinuesLikePlainDecode) {
  for (int64_t W : {2, 3, 4})
    for (int L = 1; L <= 5; ++L)
      for (int m = 1; m <= L; ++m)
        for (int next = 1; next <= 5; ++next) {  // next: fewer tokens than were accepted is the ragged case
          verify_steps<float>(ex, W, {{L, m}, {next, 1}, {1, 1}});
          verify_steps<bf16>(ex, W, {{L, m}, {next, next}, {3, 2}});
        }
}

TEST_P(ShortConvWindow, DraftsNextToAPrefillAndAPlainDecodeDisturbNeither) {
  constexpr int64_t C = 40;
  ConvWorld<bf16> w(4, C, 3);
  fill_normal(w.state, w.rng);
  const Guarded<bf16> before = w.state;
  ConvRows mixed(3);
  mixed.prefill(5, 1, true).decode(3, 2, 2).decode(1, 3, 3);
  Guarded<bf16> x = w.inputs(9);
  const Guarded<bf16> out = w.run(ex, x, mixed);
  const Guarded<bf16> after = w.state;
  const int begin[] = {0, 5, 8, 9};
  for (int n = 0; n < 3; ++n) {
    w.state = before;
    ConvRows one(3);
    if (n == 0)
      one.prefill(5, 1, true);
    else
      one.decode(n == 1 ? 3 : 1, n + 1, n + 1);
    Guarded<bf16> rows = test::rows_of(x, begin[n], begin[n + 1] - begin[n]);
    const Guarded<bf16> alone = w.run(ex, rows, one);
    EXPECT_TRUE(test::equal_bits(alone.data(), out.data() + begin[n] * C, alone.size()));
    EXPECT_TRUE(w.slot_untouched(n + 1, after));
  }
}

TEST_P(ShortConvWindow, ASnapshotIsTheWindowOfARunCutThere) {
  for (int64_t W : {2, 3, 4}) {
    constexpr int64_t C = 25, T = 6;
    for (int at = 1; at <= T; ++at) {
      ConvWorld<float> w(W, C, 2), cut(W, C, 2);
      fill_normal(w.state, w.rng);
      cut.state = w.state;
      const Guarded<float> before = w.state;
      Guarded<float> x = w.inputs(T), head = test::rows_of(x, 0, at);
      ConvRows rows(2), first(2);
      w.run(ex, x, rows.prefill(T, 1, false, 2).save(0, at, 4).save(0, T, 5).save(0, 1, -1));
      cut.run(ex, head, first.prefill(at, 1, false, 2));
      EXPECT_TRUE(test::equal_bits(w.window(4, 0), cut.window(1, 0), (W - 1) * C)) << "W " << W << " at " << at;
      EXPECT_TRUE(test::equal_bits(w.window(5, 0), w.window(1, 0), (W - 1) * C));
      EXPECT_TRUE(test::equal_bits(w.window(4, W - 1), before.data() + (4 * w.R + W - 1) * C, C))
          << "only W-1 rows are saved";
      for (int64_t slot : {0, 2, 3}) EXPECT_TRUE(w.slot_untouched(slot, before));
    }
  }
}

TEST_P(ShortConvWindow, APaddedRowOfADecodeBatchTouchesNoSlot) {
  ConvWorld<float> w(4, 17, 1, 4);
  fill_normal(w.state, w.rng);
  const Guarded<float> before = w.state;
  Guarded<float> x = w.inputs(2);
  ConvRows one, none;
  const Guarded<float> out = w.run(ex, x, one.decode(1, 2).decode(1, -1));
  EXPECT_FALSE(w.slot_untouched(2, before));
  for (int64_t slot : {0, 1, 3}) EXPECT_TRUE(w.slot_untouched(slot, before));
  for (int64_t c = 0; c < 17; ++c) EXPECT_EQ(out[17 + c], 0.0f);
  w.state = before;
  const Guarded<float> idle = w.run(ex, x, none.decode(1, -1).decode(1, -1));
  EXPECT_TRUE(same_bits(w.state, before));
  for (int64_t i = 0; i < idle.size(); ++i) EXPECT_EQ(idle[i], 0.0f);
}

TEST_P(ShortConvWindow, FaultsThrowBeforeAnythingIsWritten) {
  ConvWorld<float> w(4, 8, 2, 4);
  fill_normal(w.state, w.rng);
  const Guarded<float> before = w.state;
  Guarded<float> x = w.inputs(6);
  auto error = [&](const ConvRows& rows) {
    Guarded<float> out({6, 8});
    const std::string what = test::error_of([&] { short_conv(ex, w.args(x.view(), out.view(), rows)); });
    EXPECT_TRUE(same_bits(w.state, before)) << what;
    EXPECT_TRUE(out.untouched()) << what;
    return what;
  };
  auto rows = [] { return ConvRows(2); };
  EXPECT_EQ(error(rows().decode(1, 1).decode(1, 4)), "short_conv: slot[1, 0] is 4, expected 1..3");
  EXPECT_EQ(error(rows().decode(1, 1).decode(1, 0)), "short_conv: slot[1, 0] is 0, expected 1..3");
  EXPECT_EQ(error(rows().decode(1, 1).decode(1, -2)), "short_conv: slot[1, 0] is -2, expected 1..3");
  EXPECT_EQ(error(rows().decode(1, 2).decode(1, 2)), "short_conv: slot 2 is named by row 0 and row 1");
  EXPECT_EQ(error(rows().decode(1, 1).decode(1, 2, 0)), "short_conv: accepted[1] is 0, expected 1..2");
  EXPECT_EQ(error(rows().decode(1, 1).decode(1, 2, 3)), "short_conv: accepted[1] is 3, expected 1..2");
  EXPECT_EQ(error(rows().decode(3, 1)), "short_conv: decode row 0 has 3 tokens and 2 state columns");
  EXPECT_EQ(error(rows().prefill(7, 1)), "short_conv: cu ends at 7, past the 6 rows");
  EXPECT_EQ(error(rows().prefill(5, 1).prefill(-2, 2)), "short_conv: cu[2] is 3 after 5, expected no decrease");
  EXPECT_EQ(error(rows().prefill(2, 1).save(0, 3, 2)),
            "short_conv: snapshot[0, 1] is 3, expected a token of the sequence, 1..2");
  EXPECT_EQ(error(rows().prefill(2, 1).decode(1, 2).save(1, 1, 3)),
            "short_conv: snapshot[0, 0] names sequence 1, expected a prefill sequence, 0..0");
  EXPECT_EQ(error(rows().prefill(2, 1).save(0, 1, 4)), "short_conv: snapshot[0, 2] is 4, expected 1..3");
  EXPECT_EQ(error(rows().prefill(2, 1).save(0, 1, 1)), "short_conv: slot 1 is named by row 0 and snapshot 0");
  EXPECT_EQ(error(rows().prefill(2, 1).save(0, 1, 3).save(0, 2, 3)),
            "short_conv: slot 3 is named by snapshot 0 and snapshot 1");
}

}  // namespace
}  // namespace kdelta
