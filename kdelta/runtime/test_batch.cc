// The batch builder as a function of its rows: the cases M1-M14 and the table of kda-runtime 1.3 as design.md amends
// them, and the same rules as properties of random steps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "kdelta/runtime/batch_builder.h"
#include "kdelta/runtime/scheduler.h"
#include "tests/support/op_test.h"

namespace kdelta::runtime {
namespace {

using Ints = std::vector<int32_t>;

Request request(Ints prompt, int64_t computed, Ints slots, Ints pages) {
  Request r;
  r.prompt = std::move(prompt);
  r.computed = computed;
  r.slots = std::move(slots);
  r.pages = std::move(pages);
  return r;
}

Request with_drafts(Request r, Ints output, Ints drafts, int32_t accepted) {
  r.output = std::move(output);
  r.output.insert(r.output.end(), drafts.begin(), drafts.end());
  r.drafts = static_cast<int64_t>(drafts.size());
  r.accepted = accepted;
  return r;
}

BatchRow prefill(Request& r, int64_t tokens, std::span<const RowSnapshot> snapshots = {}) {
  return {.request = &r, .tokens = tokens, .prefill = true, .snapshots = snapshots};
}
BatchRow decode(Request& r, int64_t tokens = 1, int64_t drafts = 0) {
  return {.request = &r, .tokens = tokens, .drafts = drafts};
}

template <class T>
Ints values(const View<const T>& v) {
  return {v.data, v.data + v.shape.numel()};
}

constexpr BatchCapacity kSmall{.tokens = 96, .sequences = 4, .columns = 1, .pages = 4, .logit_rows = 96};
constexpr BatchCapacity kDrafts{
    .tokens = 96, .sequences = 4, .columns = 4, .pages = 4, .logit_rows = 16, .snapshots = 3};

// M1, M2.
TEST(BatchBuilder, LaysOutTokensBoundariesAndOwnersOfEveryRow) {
  Request a = request({7, 8, 9}, 0, {3}, {3}), b = request({1, 2}, 2, {1}, {2, 4});
  b.output = {6};
  BatchBuilder builder(Device{}, kSmall);
  const BatchRow rows[] = {prefill(a, 3), decode(b)};
  const Batch& batch = builder.build(rows, false);
  EXPECT_EQ(batch.n_prefill, 1);
  EXPECT_EQ(batch.n_decode, 1);
  EXPECT_EQ(batch.max_len, 3);
  EXPECT_EQ(batch.max_context, 3);
  EXPECT_EQ(values(batch.token), (Ints{7, 8, 9, 6}));
  EXPECT_EQ(values(batch.cu), (Ints{0, 3, 4}));
  EXPECT_EQ(values(batch.context), (Ints{0, 2}));
  EXPECT_EQ(values(batch.slot), (Ints{3, 1}));
  EXPECT_EQ(values(batch.accepted), (Ints{1, 1}));
  EXPECT_EQ(values(batch.pages), (Ints{3, -1, -1, -1, 2, 4, -1, -1}));
  EXPECT_EQ(values(batch.logit_row), (Ints{2, 3}));
  EXPECT_EQ(values(batch.draft), (Ints{-1, -1, -1, -1}));
  EXPECT_EQ(values(batch.fresh), (Ints{1, 0}));
  EXPECT_EQ(values(batch.snapshot), Ints{});
  EXPECT_EQ(std::vector<int>(builder.logit_owner().begin(), builder.logit_owner().end()), (std::vector<int>{0, 1}));
}

TEST(BatchBuilder, ARowThatLeavesTokensUncomputedWantsNoLogits) {
  Request a = request(Ints(100, 1), 0, {1}, {1, 2});
  BatchBuilder builder(Device{}, kSmall);
  const BatchRow rows[] = {prefill(a, 64)};
  EXPECT_EQ(builder.build(rows, false).logit_row.dim(0), 0);
  EXPECT_EQ(builder.build(rows, true).logit_row.dim(0), 64);
}

// M8, M9, M12 as amended: ragged drafts lie in one batch with prefills and plain decodes, each row what it is; the
// start column is what the last step accepted, whatever this step carries.
TEST(BatchBuilder, RaggedVerificationPlainDecodeAndPrefillShareOneBatch) {
  Request p = request({1, 2, 3}, 0, {1, 5, 6, 7}, {1});
  Request full = with_drafts(request({4, 5}, 2, {2, 8, 9, 10}, {2}), {6}, {21, 22, 23}, 3);
  Request shorter = with_drafts(request({4}, 2, {3, 11, 12, 13}, {3}), {7, 8}, {31}, 4);
  Request plain = with_drafts(request({4}, 1, {4, 14, 15, 16}, {4}), {9}, {}, 2);
  BatchBuilder builder(Device{}, kDrafts);
  const BatchRow rows[] = {prefill(p, 3), decode(full, 4, 3), decode(shorter, 2, 1), decode(plain)};
  const Batch& batch = builder.build(rows, false);
  EXPECT_EQ(batch.n_prefill, 1);
  EXPECT_EQ(batch.n_decode, 3);
  EXPECT_EQ(values(batch.token), (Ints{1, 2, 3, 6, 21, 22, 23, 8, 31, 9}));
  EXPECT_EQ(values(batch.cu), (Ints{0, 3, 7, 9, 10}));
  EXPECT_EQ(values(batch.draft), (Ints{-1, -1, -1, 21, 22, 23, -1, 31, -1, -1}));
  EXPECT_EQ(values(batch.accepted), (Ints{1, 3, 4, 2}));
  EXPECT_EQ(values(batch.logit_row), (Ints{2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(Ints(builder.logit_owner().begin(), builder.logit_owner().end()), (Ints{0, 1, 1, 1, 1, 2, 2, 3}));
}

// Output that was known before (after a preemption) is computed several tokens at a time; only its end wants logits.
TEST(BatchBuilder, ReplayedTokensAreNoDrafts) {
  Request r = with_drafts(request({4, 5}, 2, {2, 8, 9, 10}, {2}), {6, 7, 8, 9}, {}, 1);
  BatchBuilder builder(Device{}, kDrafts);
  const BatchRow some[] = {decode(r, 3)};
  const Batch& batch = builder.build(some, false);
  EXPECT_EQ(values(batch.token), (Ints{6, 7, 8}));
  EXPECT_EQ(values(batch.draft), (Ints{-1, -1, -1}));
  EXPECT_EQ(batch.logit_row.dim(0), 0);
  r.computed = 5;
  const BatchRow last[] = {decode(r, 1)};
  EXPECT_EQ(values(builder.build(last, false).logit_row), (Ints{0}));
}

TEST(BatchBuilder, SnapshotsNameTheirSequenceAndUnusedOnesAreVoid) {
  Request a = request(Ints(70, 1), 0, {1, 5, 6, 7}, {1, 2}), b = request(Ints(10, 1), 0, {2, 8, 9, 10}, {3});
  BatchBuilder builder(Device{}, kDrafts);
  const RowSnapshot of_a[] = {{64, 3}, {70, 4}}, of_b[] = {{5, 11}};
  const BatchRow rows[] = {prefill(a, 70, of_a), prefill(b, 10, of_b)};
  EXPECT_EQ(values(builder.build(rows, false).snapshot), (Ints{0, 64, 3, 0, 70, 4, 1, 5, 11}));
  const BatchRow one[] = {prefill(b, 10)};
  EXPECT_EQ(builder.build(one, false).snapshot.dim(0), 0);
  Request d = with_drafts(request({4}, 1, {4, 14, 15, 16}, {4}), {9}, {}, 1);
  const BatchRow decodes[] = {decode(d)};
  const Bucket bucket{.rows = 2, .row_tokens = 1};
  EXPECT_EQ(values(builder.build(decodes, false, &bucket).snapshot), Ints(9, -1));
}

// Case B3: nothing of a larger step stays visible in a smaller one, and addresses never change.
TEST(BatchBuilder, ASmallerStepShowsNothingOfTheLargerOneBeforeIt) {
  Request a = request({1, 2, 3, 4}, 0, {1}, {1}), b = request({5, 6}, 0, {2}, {2}), c = request({9}, 0, {3}, {3});
  BatchBuilder builder(Device{}, kSmall);
  const BatchRow three[] = {prefill(a, 4), prefill(b, 2), prefill(c, 1)};
  const int32_t* address = builder.build(three, false).token.data;
  const BatchRow one[] = {prefill(c, 1)};
  const Batch& small = builder.build(one, false);
  EXPECT_EQ(small.token.data, address);
  EXPECT_EQ(values(small.token), (Ints{9}));
  EXPECT_EQ(values(small.slot), (Ints{3}));
  EXPECT_EQ(values(small.pages), (Ints{3, -1, -1, -1}));
  EXPECT_EQ(values(small.cu), (Ints{0, 1}));
  EXPECT_EQ(small.sequences(), 1);
}

// M6 as amended: cu repeats its end, slots and pages are -1, accepted is 1, tokens and logit rows are void.
TEST(BatchBuilder, ABucketIsFilledToItsSizeWithRowsThatTouchNothing) {
  Request a = with_drafts(request({4, 5}, 2, {2, 8, 9, 10}, {2}), {6}, {21, 22, 23}, 2);
  Request b = with_drafts(request({4}, 1, {3, 11, 12, 13}, {3}), {9}, {}, 1);
  BatchBuilder builder(Device{}, kDrafts);
  const Bucket bucket{.rows = 4, .row_tokens = 4};
  const BatchRow rows[] = {decode(a, 4, 3), decode(b)};
  const Batch& batch = builder.build(rows, false, &bucket);
  EXPECT_EQ(values(batch.cu), (Ints{0, 4, 5, 5, 5}));
  EXPECT_EQ(values(batch.token), (Ints{6, 21, 22, 23, 9, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1}));
  EXPECT_EQ(values(batch.accepted), (Ints{2, 1, 1, 1}));
  EXPECT_EQ(values(batch.slot), (Ints{2, 8, 9, 10, 3, 11, 12, 13, -1, -1, -1, -1, -1, -1, -1, -1}));
  EXPECT_EQ(values(batch.fresh), (Ints{0, 0, 0, 0}));
  EXPECT_EQ(batch.n_decode, 2);
  EXPECT_EQ(batch.logit_row.dim(0), 16);
  EXPECT_EQ(std::vector<int>(builder.logit_owner().begin(), builder.logit_owner().end()),
            (std::vector<int>{0, 0, 0, 0, 1}));
}

// M10 as amended.
TEST(BatchBuilder, AnIdleStepIsAllPadding) {
  Request a = with_drafts(request({4, 5}, 2, {2, 8, 9, 10}, {2}), {6}, {21, 22, 23}, 2);
  BatchBuilder builder(Device{}, kDrafts);
  const Bucket bucket{.rows = 3, .row_tokens = 4};
  const BatchRow rows[] = {decode(a, 4, 3)};
  builder.build(rows, false, &bucket);
  const Batch& idle = builder.build({}, false, &bucket);
  EXPECT_EQ(idle.n_prefill + idle.n_decode, 0);
  EXPECT_EQ(values(idle.cu), (Ints{0, 0, 0, 0}));
  EXPECT_EQ(values(idle.token), Ints(12, -1));
  EXPECT_EQ(values(idle.draft), Ints(12, -1));
  EXPECT_EQ(values(idle.slot), Ints(12, -1));
  EXPECT_EQ(values(idle.pages), Ints(12, -1));
  EXPECT_EQ(values(idle.logit_row), Ints(12, -1));
  EXPECT_TRUE(builder.logit_owner().empty());
}

// A mixed step keeps its rows and logits as they are; what pads it is rows of no length and tokens of nobody.
TEST(BatchBuilder, AMixedBucketIsFilledToItsTokensBehindPromptsAndDecodeRows) {
  Request p = request({1, 2, 3}, 0, {5}, {5});
  Request a = with_drafts(request({4, 5}, 2, {2, 8, 9, 10}, {2}), {6}, {21}, 2);
  p.slots = {5, 11, 12, 13};
  BatchBuilder builder(Device{}, kDrafts);
  const Bucket bucket{.rows = 4, .mixed_tokens = 8};
  const BatchRow rows[] = {prefill(p, 3), decode(a, 2, 1)};
  const Batch& batch = builder.build(rows, false, &bucket);
  EXPECT_EQ(values(batch.cu), (Ints{0, 3, 5, 5, 5}));
  EXPECT_EQ(values(batch.token), (Ints{1, 2, 3, 6, 21, -1, -1, -1}));
  EXPECT_EQ(values(batch.draft), (Ints{-1, -1, -1, 21, -1, -1, -1, -1}));
  EXPECT_EQ(values(batch.slot), (Ints{5, 11, 12, 13, 2, 8, 9, 10, -1, -1, -1, -1, -1, -1, -1, -1}));
  EXPECT_EQ(values(batch.accepted), (Ints{1, 2, 1, 1}));
  EXPECT_EQ(values(batch.fresh), (Ints{1, 0, 0, 0}));
  EXPECT_EQ(values(batch.logit_row), (Ints{2, 3, 4}));
  EXPECT_EQ(batch.n_prefill, 1);
  EXPECT_EQ(batch.n_decode, 1);
  EXPECT_EQ(batch.max_len, 3);
}

TEST(BatchBuilder, OrderCapacityAndLengthsAreInvariants) {
  Request a = request({1}, 0, {1}, {1}), b = request({1, 2}, 1, {2}, {2});
  BatchBuilder builder(Device{}, {.tokens = 2, .sequences = 2, .columns = 1, .pages = 1, .logit_rows = 2});
  const auto error = [&](std::initializer_list<BatchRow> rows) {
    const std::vector<BatchRow> all(rows);
    return test::error_of([&] { builder.build(all, false); });
  };
  EXPECT_THAT(error({decode(b), prefill(a, 1)}), testing::HasSubstr("a prefill row behind a decode row"));
  EXPECT_THAT(error({prefill(b, 1), prefill(b, 2)}), testing::HasSubstr("more tokens than 2"));
  EXPECT_THAT(error({prefill(a, 2)}), testing::HasSubstr("has 1 tokens"));
  EXPECT_THAT(error({prefill(a, 0)}), testing::HasSubstr("planned to 0"));
  EXPECT_THAT(error({decode(b, 2)}), testing::HasSubstr("planned to 3"));
  b.computed = 0;
  EXPECT_THAT(error({decode(b, 2)}), testing::HasSubstr("a decode row of 2 tokens"));
  a.accepted = 2;
  EXPECT_THAT(error({prefill(a, 1)}), testing::HasSubstr("accepted 2"));
}

TEST(Bucket, AMixedOneTakesStepsWithPromptsAndNoOthers) {
  const Bucket buckets[] = {{4, 1}, {.rows = 3, .mixed_tokens = 128}, {.rows = 2, .mixed_tokens = 64}};
  Request r;
  const auto chosen = [&](std::initializer_list<BatchRow> rows) {
    const std::vector<BatchRow> all(rows);
    const Bucket* b = choose_bucket(buckets, all);
    return b == nullptr ? -1 : b->mixed_tokens;
  };
  EXPECT_EQ(chosen({prefill(r, 63), decode(r)}), 64);
  EXPECT_EQ(chosen({prefill(r, 64), decode(r)}), 128) << "tokens of all rows";
  EXPECT_EQ(chosen({prefill(r, 3), decode(r), decode(r)}), 128) << "rows";
  EXPECT_EQ(chosen({prefill(r, 127), decode(r), decode(r)}), -1);
  EXPECT_EQ(chosen({prefill(r, 3), decode(r), decode(r), decode(r)}), -1);
  EXPECT_EQ(chosen({decode(r)}), 0);
}

// The twelve cases of graph-safe handoffs (kda-runtime 6.2): one token with a state is a decode row and fits a bucket
// of single rows, a verification fits a wider one, anything with a first token or a prompt piece runs in its own shape.
TEST(Bucket, DecodeRowsOfFittingLengthAndNothingElse) {
  const Bucket buckets[] = {{1, 1}, {2, 1}, {4, 1}, {2, 4}, {4, 4}};
  Request r;
  const auto chosen = [&](std::initializer_list<BatchRow> rows) {
    const std::vector<BatchRow> all(rows);
    const Bucket* b = choose_bucket(buckets, all);
    return b == nullptr ? Ints{} : Ints{static_cast<int32_t>(b->rows), static_cast<int32_t>(b->row_tokens)};
  };
  EXPECT_EQ(chosen({decode(r)}), (Ints{1, 1}));
  EXPECT_EQ(chosen({decode(r), decode(r)}), (Ints{2, 1}));
  EXPECT_EQ(chosen({decode(r), decode(r), decode(r)}), (Ints{4, 1}));
  EXPECT_EQ(chosen({decode(r, 4, 3)}), (Ints{2, 4}));
  EXPECT_EQ(chosen({decode(r, 2, 1), decode(r)}), (Ints{2, 4}));
  EXPECT_EQ(chosen({decode(r), decode(r), decode(r, 3, 2)}), (Ints{4, 4}));
  EXPECT_EQ(chosen({decode(r, 5, 4)}), Ints{});
  EXPECT_EQ(chosen({decode(r), decode(r), decode(r), decode(r), decode(r)}), Ints{});
  EXPECT_EQ(chosen({prefill(r, 1)}), Ints{}) << "a first token starts from zero: no decode row";
  EXPECT_EQ(chosen({prefill(r, 1), decode(r)}), Ints{});
  EXPECT_EQ(chosen({prefill(r, 4)}), Ints{}) << "the shape of a verification, but a prompt piece";
  EXPECT_EQ(chosen({}), (Ints{1, 1})) << "an idle step replays the smallest";
}

// Random steps as the scheduler plans them: what every consumer of a Batch relies on.
TEST(BatchBuilder, PropertiesOfRandomSteps) {
  std::mt19937_64 rng(11);
  const auto pick = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(rng() % static_cast<uint64_t>(high - low + 1));
  };
  for (int step = 0; step < 20000; ++step) {
    const int64_t columns = pick(1, 17), N = pick(1, 8), P = pick(4, 12);
    const BatchCapacity c{.tokens = 600,
                          .sequences = 8,
                          .columns = columns,
                          .pages = P,
                          .page_tokens = 16,
                          .logit_rows = 600,
                          .snapshots = 8};
    static std::map<int64_t, std::unique_ptr<BatchBuilder>> builders;  // kept: stale contents are part of the test
    auto& builder = builders[columns * 100 + P];
    if (!builder) builder = std::make_unique<BatchBuilder>(Device{}, c);
    std::vector<Request> requests(static_cast<size_t>(N));
    std::vector<BatchRow> rows;
    const int64_t prefills = pick(0, N);
    int32_t slot = 1, page = 1;
    for (int64_t n = 0; n < N; ++n) {
      Request& r = requests[static_cast<size_t>(n)];
      const int64_t tokens = n < prefills ? pick(1, 60) : pick(1, columns);
      const int64_t drafts = n < prefills ? 0 : pick(0, tokens - 1),
                    context = n < prefills ? pick(0, 1) * 16 : pick(1, 3);
      const int64_t behind = n < prefills ? pick(0, 3) : 0;  // known tokens that this step leaves
      r.prompt.resize(static_cast<size_t>(context + tokens - drafts + behind));
      for (auto& t : r.prompt) t = static_cast<int32_t>(rng() % 1000);
      r.output.assign(static_cast<size_t>(drafts), static_cast<int32_t>(rng() % 1000));
      r.drafts = drafts;
      r.computed = context;
      r.accepted = static_cast<int32_t>(pick(1, columns));
      for (int64_t i = 0; i < columns; ++i) r.slots.push_back(slot++);
      for (int64_t i = 0; i < std::min(P, pages_for(context + tokens, 16)); ++i) r.pages.push_back(page++);
      rows.push_back({.request = &r, .tokens = tokens, .drafts = drafts, .prefill = n < prefills});
    }
    const Bucket bucket{.rows = pick(N, 8), .row_tokens = columns};
    const bool padded = prefills == 0 && rng() % 2 == 0;
    const Batch& b = builder->build(rows, false, padded ? &bucket : nullptr);
    ASSERT_EQ(b.n_prefill, prefills);
    ASSERT_EQ(b.n_decode, N - prefills);
    ASSERT_EQ(b.sequences(), padded ? bucket.rows : N);
    int64_t longest = 0, t = 0;
    std::set<int32_t> slots, pages;
    size_t m = 0;
    for (int64_t n = 0; n < N; ++n) {
      const BatchRow& row = rows[static_cast<size_t>(n)];
      const Request& r = *row.request;
      ASSERT_EQ(*b.cu.at(n), t);
      ASSERT_EQ(*b.context.at(n), r.computed);
      ASSERT_EQ(*b.accepted.at(n), r.accepted);
      ASSERT_EQ(*b.fresh.at(n) != 0, r.computed == 0);
      for (int64_t i = 0; i < row.tokens; ++i, ++t) {
        ASSERT_EQ(b.token.data[t], r.token(r.computed + i));
        const bool checked = i + 1 < row.tokens && r.computed + i + 1 >= r.known();
        ASSERT_EQ(b.draft.data[t], checked ? r.token(r.computed + i + 1) : -1);
        if (r.computed + i + 1 < r.known()) continue;
        ASSERT_EQ(b.logit_row.data[m], t);
        ASSERT_EQ(builder->logit_owner()[m++], static_cast<int>(n));
      }
      longest = std::max(longest, row.tokens);
      for (int64_t i = 0; i < columns; ++i) ASSERT_TRUE(slots.insert(*b.slot.at(n, i)).second);
      for (size_t i = 0; i < r.pages.size(); ++i)
        ASSERT_TRUE(pages.insert(*b.pages.at(n, static_cast<int64_t>(i))).second);
      for (int64_t i = static_cast<int64_t>(r.pages.size()); i < P; ++i) ASSERT_EQ(*b.pages.at(n, i), -1);
    }
    ASSERT_EQ(m, builder->logit_owner().size());
    ASSERT_EQ(b.max_len, longest);
    ASSERT_FALSE(slots.contains(0) || slots.contains(-1) || pages.contains(0) || pages.contains(-1));
    for (int64_t n = N; n < b.sequences(); ++n) {
      ASSERT_EQ(*b.cu.at(n + 1), t);
      ASSERT_EQ(*b.accepted.at(n), 1);
      for (int64_t i = 0; i < columns; ++i) ASSERT_EQ(*b.slot.at(n, i), -1);
      for (int64_t i = 0; i < P; ++i) ASSERT_EQ(*b.pages.at(n, i), -1);
    }
    for (int64_t i = t; i < b.tokens(); ++i) ASSERT_TRUE(b.token.data[i] == -1 && b.draft.data[i] == -1);
    for (auto i = static_cast<int64_t>(m); i < b.logit_row.dim(0); ++i) ASSERT_EQ(b.logit_row.data[i], -1);
  }
}

TEST(BatchBuilder, ExplainsTheRangesOfAStep) {
  Request p = request({1, 2, 3}, 0, {1, 5, 6, 7}, {1});
  Request v = with_drafts(request({4, 5}, 2, {2, 8, 9, 10}, {2}), {6}, {21, 22}, 3);
  BatchBuilder builder(Device{}, kDrafts);
  const RowSnapshot snapshot[] = {{2, 3}};
  const BatchRow rows[] = {prefill(p, 3, snapshot), decode(v, 3, 2)};
  builder.build(rows, false);
  EXPECT_EQ(builder.explain(),
            "  rows 0..2 of 2: prefill 0..1, decode 1..2; tokens: prefill 0..3, decode 3..6, padding 6..6\n"
            "  row 0: tokens 0..3, context 0, slots 1 5 6 7, from zero, snapshot after 2 in slot 3, pages 1, logits 1\n"
            "  row 1: tokens 3..6, context 2, slots 2 8 9 10, from column 2, pages 2, logits 3\n");
}

}  // namespace
}  // namespace kdelta::runtime
