// sample_device and its packer on the CPU: packed rows give what sample gives for the rows themselves.
#include <gtest/gtest.h>

#include <cstring>

#include "kdelta/ops/sample/test_rows.h"
#include "tests/support/op_test.h"

namespace kdelta::test {
int64_t allocations();  // of the whole program so far; test_allocations.cc

namespace {

// Memory of a call with room for `rows` rows.
struct Arrays {
  Arrays(int64_t M, int64_t W, size_t bans = 64)
      : rows(static_cast<size_t>(M)),
        bias(64),
        banned(bans),
        history(4096),
        token({M}),
        logprob({M}),
        top_token({M, W}),
        top_logprob({M, W}) {}
  SampleDevicePack pack() { return {.rows = rows, .bias = bias, .banned = banned, .history = history}; }
  SampleDeviceArgs args(const View<const float>& logits) {
    const auto view = [](auto& v) { return View(v.data(), Shape{static_cast<int64_t>(v.size())}); };
    return {.logits = logits,
            .rows = view(rows),
            .bias = view(bias),
            .banned = view(banned),
            .history = view(history),
            .token = token,
            .logprob = logprob,
            .top_token = top_token,
            .top_logprob = top_logprob};
  }
  std::vector<SampleDeviceRow> rows;
  std::vector<LogitBias> bias;
  std::vector<int32_t> banned, history;
  Guarded<int32_t> token;
  Guarded<float> logprob;
  Guarded<int32_t> top_token;
  Guarded<float> top_logprob;
};

TEST(SampleDevice, PackedRowsGiveWhatSampleGivesAndTheRestIsPadding) {
  TestExec ex;
  ex.force("sample", "reference");
  for (uint64_t seed = 0; seed < 60; ++seed) {
    Rng rng(seed);
    const int64_t V = 1 + static_cast<int64_t>(rng() % 90), M = 9, live = 6, W = 5;
    Guarded<float> logits({M, V});
    std::vector<RandomRow> random;
    for (int64_t m = 0; m < live; ++m) random.emplace_back(rng, V, true), random_logits(logits.data() + m * V, V, rng);
    const std::vector<SampleRow> rows = rows_of(random);
    std::vector<SampleResult> want(rows.size());
    sample(ex, {.logits = View<const float>(logits.data(), {live, V}), .rows = rows, .results = want});
    int64_t bans = 0;
    for (const SampleRow& row : rows) bans += packed_bans(row, V);
    Arrays a(M, W, static_cast<size_t>(bans));  // no more room than that
    EXPECT_EQ(pack_sample_rows(rows, V, {}, a.pack()).banned, bans);
    sample_device(ex, a.args(logits));
    for (int64_t m = 0; m < M; ++m) {
      const SampleResult expected = m < live ? want[static_cast<size_t>(m)] : SampleResult{};
      EXPECT_EQ(a.token[m], expected.token);
      EXPECT_EQ(a.logprob[m], expected.logprob);
      for (int64_t i = 0; i < W; ++i) {
        const bool there = i < static_cast<int64_t>(expected.top.size());
        EXPECT_EQ(a.top_token[m * W + i], there ? expected.top[static_cast<size_t>(i)].token : -1);
        EXPECT_EQ(a.top_logprob[m * W + i], there ? expected.top[static_cast<size_t>(i)].logprob : 0);
      }
    }
  }
}

TEST(SampleDevice, AppendPutsATokenBehindAHistoryThatIsKeptAndNowhereElse) {
  TestExec ex;
  Guarded<float> logits({3, 4});
  for (int64_t i = 0; i < 12; ++i) logits[i] = i % 4 == 2 ? 1.0f : 0.0f;
  logits[8] = NAN;  // row 2 has no token
  const std::vector<int32_t> prompt{0, 1}, output{3};
  SampleRow row;
  row.params.temperature = 0;
  row.params.presence_penalty = 0.5f;
  row.prompt = prompt, row.output = output;
  Arrays a(3, 0);
  std::fill(a.history.begin(), a.history.end(), 3);
  const int64_t kept[] = {100, -1, 200};
  const SampleDeviceCounts used = pack_sample_rows(std::vector<SampleRow>(3, row), 4, kept, a.pack());
  EXPECT_EQ(used.history, 3) << "one row of three is packed";
  std::vector<int32_t> want = a.history;
  want[103] = 2;
  SampleDeviceArgs args = a.args(logits);
  args.append = true;
  sample_device(ex, args);
  EXPECT_EQ(a.history, want);
}

TEST(SampleDevice, PackingAllocatesNothing) {
  Rng rng(3);
  std::vector<RandomRow> random;
  for (int i = 0; i < 8; ++i) random.emplace_back(rng, 50);
  const std::vector<SampleRow> rows = rows_of(random);
  Arrays a(8, 0);
  const int64_t before = allocations();
  pack_sample_rows(rows, 50, {}, a.pack());
  EXPECT_EQ(allocations(), before);
}

TEST(SampleDevice, AClusterTakesWhatItsSharedMemoryHolds) {
  SampleDeviceDesc d{.rows = 4, .vocabulary = 163840, .most = 0};
  EXPECT_EQ(sample_device_cuda_cluster_refuse(d), nullptr);
  d.vocabulary = 393216;
  EXPECT_EQ(sample_device_cuda_cluster_refuse(d), nullptr);
  ++d.vocabulary;
  EXPECT_STREQ(sample_device_cuda_cluster_refuse(d), "a vocabulary of more than 393,216");
  const int64_t four = sample_device_cuda_scratch(d);
  d.rows = 64;
  EXPECT_EQ(sample_device_cuda_scratch(d), 16 * four);
  d.rows = 1000;
  EXPECT_EQ(sample_device_cuda_scratch(d), 16 * four) << "more rows take turns";
}

TEST(SampleDeviceRefuses, WhatDoesNotFitByName) {
  TestExec ex;
  const std::vector<int32_t> ids(65, 1);
  SampleRow row;
  row.banned = ids;
  Arrays a(1, 2);
  EXPECT_EQ(error_of([&] {
              pack_sample_rows({&row, 1}, 9, {}, a.pack());
            }),
            "pack_sample_rows: banned: capacity 64, at least 65 needed");
  const std::vector<uint32_t> none(3, 0);
  row.allowed = none;
  row.banned = {};
  EXPECT_EQ(error_of([&] {
              pack_sample_rows({&row, 1}, 65, {}, a.pack());
            }),
            "pack_sample_rows: banned: capacity 64, at least 65 needed");
  row.allowed = {};
  const std::vector<SampleRow> two(2);
  EXPECT_EQ(error_of([&] { pack_sample_rows(two, 9, {}, a.pack()); }), "pack_sample_rows: rows: capacity 1, 2 given");
  const int64_t kept[] = {0};
  EXPECT_EQ(error_of([&] { pack_sample_rows(std::span(two).first(0), 9, kept, a.pack()); }),
            "pack_sample_rows: kept: 1 places, expected 0");
  row.banned = std::span(ids).first(1);
  EXPECT_EQ(error_of([&] {
              pack_sample_rows({&row, 1}, 1, {}, a.pack());
            }),
            "sample: row 0: banned[0]: 1, expected 0..0");
  Guarded<float> logits({1, 3});
  std::fill_n(logits.data(), 3, 0.0f);
  pack_sample_rows({&row, 1}, 3, {}, a.pack());
  a.rows[0].banned = 60, a.rows[0].banned_count = 5;
  EXPECT_EQ(error_of([&] { sample_device(ex, a.args(logits)); }),
            "sample_device: row 0: banned: 5 from 60 on, the array holds 64");
  SampleDeviceArgs args = a.args(logits);
  args.top_logprob = View<float>(a.top_logprob.data(), {1, 1});
  EXPECT_EQ(error_of([&] { sample_device(ex, args); }), "sample_device: top_logprob: shape [1, 1], expected [1, 2]");
}

}  // namespace
}  // namespace kdelta::test
