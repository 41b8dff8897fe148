#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "kdelta/runtime/batch_builder.h"
#include "kdelta/runtime/state_pool.h"
#include "tests/support/op_test.h"

namespace kdelta::runtime {
namespace {

Request request(std::vector<int32_t> prompt, int64_t computed, int32_t slot, std::vector<int32_t> pages) {
  Request r;
  r.prompt = std::move(prompt);
  r.computed = computed;
  r.slots = {slot};
  r.pages = std::move(pages);
  return r;
}

std::vector<int32_t> values(const View<const int32_t>& v) {
  return {v.data, v.data + v.shape.numel()};
}

TEST(BatchBuilder, LaysOutTokensBoundariesAndOwnersOfEveryRow) {
  Request a = request({7, 8, 9}, 0, 3, {5}), b = request({1, 2}, 2, 1, {2, 4});
  b.output = {6};
  BatchBuilder builder(Device{}, {.tokens = 8, .sequences = 3, .columns = 1, .pages = 4, .logit_rows = 3});
  const BatchRow rows[] = {{&a, 3, true}, {&b, 1, false}};
  const Batch& batch = builder.build(rows, false);
  EXPECT_EQ(batch.n_prefill, 1);
  EXPECT_EQ(batch.n_decode, 1);
  EXPECT_EQ(batch.max_len, 3);
  EXPECT_EQ(batch.max_context, 3);
  EXPECT_EQ(values(batch.token), (std::vector<int32_t>{7, 8, 9, 6}));
  EXPECT_EQ(values(batch.cu), (std::vector<int32_t>{0, 3, 4}));
  EXPECT_EQ(values(batch.context), (std::vector<int32_t>{0, 2}));
  EXPECT_EQ(values(batch.slot), (std::vector<int32_t>{3, 1}));
  EXPECT_EQ(values(batch.accepted), (std::vector<int32_t>{1, 1}));
  EXPECT_EQ(values(batch.pages), (std::vector<int32_t>{5, -1, -1, -1, 2, 4, -1, -1}));
  EXPECT_EQ(values(batch.logit_row), (std::vector<int32_t>{2, 3}));
  EXPECT_EQ(values(batch.draft), (std::vector<int32_t>{-1, -1, -1, -1}));
  EXPECT_EQ(batch.fresh.data[0], 1);
  EXPECT_EQ(batch.fresh.data[1], 0);
  EXPECT_EQ(std::vector<int>(builder.logit_owner().begin(), builder.logit_owner().end()), (std::vector<int>{0, 1}));
}

TEST(BatchBuilder, ARowThatLeavesTokensUncomputedWantsNoLogits) {
  Request a = request(std::vector<int32_t>(100, 1), 0, 1, {1, 2});
  BatchBuilder builder(Device{}, {.tokens = 64, .sequences = 1, .columns = 1, .pages = 2, .logit_rows = 64});
  const BatchRow rows[] = {{&a, 64, true}};
  EXPECT_EQ(builder.build(rows, false).logit_row.dim(0), 0);
  EXPECT_EQ(builder.build(rows, true).logit_row.dim(0), 64);
}

// Case B3: nothing of a larger step stays visible in a smaller one, and addresses never change.
TEST(BatchBuilder, ASmallerStepShowsNothingOfTheLargerOneBeforeIt) {
  Request a = request({1, 2, 3, 4}, 0, 1, {1}), b = request({5, 6}, 0, 2, {2}), c = request({9}, 0, 3, {3});
  BatchBuilder builder(Device{}, {.tokens = 8, .sequences = 3, .columns = 1, .pages = 2, .logit_rows = 3});
  const BatchRow three[] = {{&a, 4, true}, {&b, 2, true}, {&c, 1, true}};
  const int32_t* address = builder.build(three, false).token.data;
  const BatchRow one[] = {{&c, 1, true}};
  const Batch& small = builder.build(one, false);
  EXPECT_EQ(small.token.data, address);
  EXPECT_EQ(values(small.token), (std::vector<int32_t>{9}));
  EXPECT_EQ(values(small.slot), (std::vector<int32_t>{3}));
  EXPECT_EQ(values(small.pages), (std::vector<int32_t>{3, -1}));
  EXPECT_EQ(values(small.cu), (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(small.sequences(), 1);
}

TEST(BatchBuilder, OrderAndCapacityAreInvariants) {
  Request a = request({1}, 0, 1, {1}), b = request({1, 2}, 1, 2, {2});
  BatchBuilder builder(Device{}, {.tokens = 2, .sequences = 2, .columns = 1, .pages = 1, .logit_rows = 2});
  const BatchRow wrong[] = {{&b, 1, false}, {&a, 1, true}};
  EXPECT_THAT(test::error_of([&] { builder.build(wrong, false); }),
              testing::HasSubstr("a prefill row behind a decode row"));
  const BatchRow large[] = {{&b, 1, true}, {&b, 2, true}};
  EXPECT_THAT(test::error_of([&] { builder.build(large, false); }), testing::HasSubstr("more tokens than 2"));
}

std::vector<std::vector<StateSpec>> two_layers() {
  return {{{"recurrent", StateKind::slot, DType::f32, {2, 4, 4}, true},
           {"conv", StateKind::slot, DType::bf16, {3, 24}, false}},
          {{"latent", StateKind::page, DType::bf16, {64, 10}, false}}};
}

TEST(StatePool, SizesFollowFromTheSpecsAndNumberZeroIsNobodys) {
  const auto specs = two_layers();
  EXPECT_EQ(StatePool::slot_bytes(specs), 2 * 4 * 4 * 4 + 3 * 24 * 2);
  EXPECT_EQ(StatePool::page_bytes(specs), 64 * 10 * 2);
  StatePool pool(Device{}, specs, 3, 2);
  EXPECT_EQ(to_string(pool.views()[0][0].shape), "[4, 2, 4, 4]");
  EXPECT_EQ(to_string(pool.views()[1][0].shape), "[3, 64, 10]");
  EXPECT_EQ(pool.free_slots(), 3);
  std::vector<int32_t> slots = {pool.take_slot(), pool.take_slot(), pool.take_slot()};
  EXPECT_EQ(slots, (std::vector<int32_t>{1, 2, 3}));
  EXPECT_THAT(test::error_of([&] { (void)pool.take_slot(); }), testing::HasSubstr("no free state slot"));
  pool.give_back_slots(slots);
  EXPECT_TRUE(slots.empty());
  EXPECT_EQ(pool.free_slots(), 3);
}

TEST(StatePool, PoisonReachesEveryFreePlaceAndNoHeldOne) {
  StatePool pool(Device{}, two_layers(), 3, 2);
  const int32_t held = pool.take_slot();
  const AnyView state = pool.views()[0][0];
  for (int64_t i = 0; i < 32; ++i) state.at<float>(held)[i] = static_cast<float>(i);
  pool.poison_free();
  for (int64_t slot = 0; slot < 4; ++slot)
    for (int64_t i = 0; i < 32; ++i) {
      const float x = state.at<float>(slot)[i];
      if (slot == held) {
        EXPECT_EQ(x, static_cast<float>(i));
      } else {
        EXPECT_TRUE(std::isnan(x)) << slot;
      }
    }
}

}  // namespace
}  // namespace kdelta::runtime
