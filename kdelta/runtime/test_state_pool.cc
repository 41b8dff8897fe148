#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "kdelta/runtime/state_pool.h"
#include "tests/support/op_test.h"

namespace kdelta::runtime {
namespace {

// Recurrent state [2, 4, 4] per column, window of 3 + columns-1 rows of 24, pages of 8 tokens.
LayerStates two_layers(int64_t columns = 1) {
  return {{{"recurrent", StateKind::slot, DType::f32, {2, 4, 4}, SlotRule::column},
           {"conv", StateKind::slot, DType::bf16, {3 + columns - 1, 24}, SlotRule::window}},
          {{"latent", StateKind::page, DType::bf16, {8, 10}}}};
}

StatePool pool_of(const PoolSize& size) {
  return StatePool(Device{}, two_layers(size.columns), size);
}

// Element 0 of a row of the window, as a number that tells it from all others.
bf16* window_row(StatePool& pool, int32_t slot, int64_t row) {
  return pool.views()[0][1].at<bf16>(slot, row);
}
float* recurrent(StatePool& pool, int32_t slot) {
  return pool.views()[0][0].at<float>(slot);
}

TEST(StatePool, SizesFollowFromTheSpecsAndNumberZeroIsNobodys) {
  const auto specs = two_layers();
  EXPECT_EQ(slot_bytes(specs), 2 * 4 * 4 * 4 + 3 * 24 * 2);
  EXPECT_EQ(page_bytes(specs), 8 * 10 * 2);
  StatePool pool = pool_of({.slots = 3, .pages = 2});
  EXPECT_EQ(to_string(pool.views()[0][0].shape), "[4, 2, 4, 4]");
  EXPECT_EQ(to_string(pool.views()[1][0].shape), "[3, 8, 10]");
  EXPECT_EQ(pool.free_slots(), 3);
  std::vector<int32_t> slots = {pool.take_slot(), pool.take_slot(), pool.take_slot()};
  EXPECT_EQ(slots, (std::vector<int32_t>{1, 2, 3}));
  EXPECT_THAT(test::error_of([&] { (void)pool.take_slot(); }), testing::HasSubstr("no free state slot"));
  pool.give_back_slots(slots);
  EXPECT_TRUE(slots.empty());
  EXPECT_EQ(pool.free_slots(), 3);
}

// A window needs one slot a request however many drafts there are.
TEST(StatePool, DraftSlotsExistOnlyWhereEachColumnHasASlotOfItsOwn) {
  StatePool pool = pool_of({.slots = 2, .draft_slots = 6, .pages = 1, .columns = 4});
  EXPECT_EQ(pool.views()[0][0].dim(0), 9);
  EXPECT_EQ(pool.views()[0][1].dim(0), 3);
  EXPECT_EQ(pool.take_draft_slot(), 3);
  EXPECT_EQ(pool.take_slot(), 1);
  std::vector<int32_t> mixed = {1, 3};
  pool.give_back_slots(mixed);
  EXPECT_EQ(pool.free_slots(), 2);
  EXPECT_EQ(pool.free_draft_slots(), 6);
}

TEST(StatePool, APageIsFreeAgainWhenItsLastOwnerDropsIt) {
  StatePool pool = pool_of({.slots = 1, .pages = 2});
  const int32_t page = pool.take_page();
  pool.share_page(page);
  EXPECT_EQ(pool.page_owners(page), 2);
  pool.drop_page(page);
  EXPECT_EQ(pool.free_pages(), 1);
  pool.drop_page(page);
  EXPECT_EQ(pool.free_pages(), 2);
  EXPECT_THAT(test::error_of([&] { pool.drop_page(page); }), testing::HasSubstr("belongs to nobody"));
  EXPECT_THAT(test::error_of([&] { pool.share_page(page); }), testing::HasSubstr("belongs to nobody"));
}

TEST(StatePool, PoisonReachesEveryFreePlaceAndNoHeldOne) {
  StatePool pool = pool_of({.slots = 3, .draft_slots = 2, .pages = 2, .columns = 2});
  const int32_t held = pool.take_slot(), draft = pool.take_draft_slot();
  for (const int32_t s : {held, draft})
    for (int i = 0; i < 32; ++i) recurrent(pool, s)[i] = static_cast<float>(i);
  pool.poison_free();
  for (int32_t slot = 0; slot < 6; ++slot)
    for (int i = 0; i < 32; ++i) {
      const float x = recurrent(pool, slot)[i];
      if (slot == held || slot == draft) {
        EXPECT_EQ(x, static_cast<float>(i));
      } else {
        EXPECT_TRUE(std::isnan(x)) << slot;
      }
    }
}

// The state that the next step would read is the one that a settled slot holds, whatever was accepted; the moves of a
// window by fewer rows than it holds overlap.
TEST(StatePool, SettlingBringsTheAcceptedColumnAndRowsToTheFront) {
  for (int32_t accepted = 1; accepted <= 4; ++accepted) {
    for (const bool in_place : {true, false}) {
      StatePool pool = pool_of({.slots = 2, .draft_slots = 3, .pages = 1, .columns = 4});
      const std::vector<int32_t> slots = {1, 3, 4, 5};
      pool.poison_free();
      for (size_t c = 0; c < 4; ++c) recurrent(pool, slots[c])[5] = static_cast<float>(10 + c);
      for (int64_t row = 0; row < 6; ++row)
        for (int64_t i = 0; i < 24; ++i) window_row(pool, 1, row)[i] = to_bf16(static_cast<float>(row * 24 + i));
      const int32_t to = in_place ? 1 : 2;
      pool.settle(slots, accepted, to);
      EXPECT_EQ(recurrent(pool, to)[5], static_cast<float>(9 + accepted));
      for (int64_t row = 0; row < 3; ++row)
        for (int64_t i = 0; i < 24; ++i)
          ASSERT_EQ(to_float(window_row(pool, to, row)[i]), static_cast<float>((row + accepted - 1) * 24 + i));
    }
  }
}

// A layer whose drafts leave records: the sum of the kept ones stands for what an op would do with them.
LayerStates recorded_layers(int64_t columns) {
  return {{{"recurrent", StateKind::slot, DType::f32, {2, 4, 4}, SlotRule::replay},
           {"conv", StateKind::slot, DType::bf16, {3 + columns - 1, 24}, SlotRule::window},
           {"records", StateKind::slot, DType::f32, {columns - 1, 2, 12}, SlotRule::record}}};
}

// What settling moves and what it has replayed: in place, and in a fork whose source goes on unsettled. Nothing of a
// rejected record is moved or saved.
TEST(StatePool, SettlingReplaysTheKeptRecordsWhereTheStateGoes) {
  for (int32_t accepted = 1; accepted <= 4; ++accepted)
    for (const bool in_place : {true, false}) {
      const PoolSize size{.slots = 2, .draft_slots = 6, .pages = 1, .columns = 4};
      StatePool* self = nullptr;
      int replays = 0;
      StatePool pool(Device{}, recorded_layers(4), size, [&](int32_t slot, int32_t kept) {
        ++replays;
        for (int64_t j = 0; j + 1 < kept; ++j)
          self->views()[0][0].at<float>(slot)[5] += self->views()[0][2].at<float>(slot, j)[7];
      });
      self = &pool;
      EXPECT_EQ(pool.views()[0][0].dim(0), 3) << "drafts need no slots";
      pool.poison_free();
      for (int i = 0; i < 32; ++i) recurrent(pool, 1)[i] = 1;
      for (int64_t j = 0; j + 1 < accepted; ++j) pool.views()[0][2].at<float>(1, j)[7] = static_cast<float>(10 << j);
      const float want = 1 + static_cast<float>((10 << (accepted - 1)) - 10);
      const int32_t to = in_place ? 1 : 2;
      pool.settle(std::vector<int32_t>{1}, accepted, to);
      EXPECT_EQ(recurrent(pool, to)[5], want) << accepted;
      EXPECT_EQ(replays, accepted > 1 ? 1 : 0);
      if (!in_place) {
        EXPECT_EQ(recurrent(pool, 1)[5], 1);
        for (int64_t j = accepted - 1; j < 3; ++j) EXPECT_TRUE(std::isnan(pool.views()[0][2].at<float>(2, j)[7])) << j;
      }
      EXPECT_EQ(pool.saved_bytes(0), StatePool(Device{}, two_layers(4), size).saved_bytes(0)) << "no records";
    }
  StatePool nobody(Device{}, recorded_layers(2), {.slots = 1, .draft_slots = 1, .pages = 1, .columns = 2});
  EXPECT_THAT(test::error_of([&] {
                nobody.settle(std::vector<int32_t>{1, 2}, 2);
              }),
              testing::HasSubstr("nobody to replay 1 records"));
}

TEST(Capacity, RecordsBelongToTheHomeSlotAndDraftsAddNothingElse) {
  const LayerStates layers = recorded_layers(4);
  EXPECT_EQ(slot_bytes(layers), 32 * 4 + 6 * 24 * 2 + 3 * 24 * 4);
  EXPECT_EQ(draft_slot_bytes(layers), 0);
  const PoolSize size{.slots = 5, .draft_slots = 15, .pages = 1, .columns = 4};
  for (const StateSpec& s : layers[0]) EXPECT_EQ(pool_count(s, size), 6) << s.name;
}

// A number behind the home slots would be an address outside of every array.
TEST(StatePool, DraftSlotsWithoutMemoryAreNeverHandedOut) {
  const PoolSize size{.slots = 2, .draft_slots = 6, .pages = 1, .columns = 4};
  StatePool records(Device{}, recorded_layers(4), size, [](int32_t, int32_t) {});
  EXPECT_FALSE(records.has_draft_slots());
  EXPECT_EQ(records.free_draft_slots(), 0);
  EXPECT_EQ(records.size().draft_slots, 0);
  EXPECT_THAT(test::error_of([&] { records.take_draft_slot(); }), testing::HasSubstr("no free draft slot"));
  const int32_t home = records.take_slot();
  for (int32_t accepted = 1; accepted <= 4; ++accepted)
    EXPECT_EQ(test::error_of([&] { records.settle({&home, 1}, accepted); }), "no error") << accepted;
  EXPECT_THAT(test::error_of([&] { records.settle({&home, 1}, 5); }), testing::HasSubstr("accepted 5 of 4 columns"));
  StatePool slots = pool_of(size);
  EXPECT_TRUE(slots.has_draft_slots());
  EXPECT_THAT(test::error_of([&] { slots.settle({&home, 1}, 2); }), testing::HasSubstr("accepted 2 of 1 columns"));
}

// Bytes that a stranger left in a page's tail or behind the settled window must not travel.
TEST(StatePool, SavedBytesHoldTheSequenceAndNothingOfAStranger) {
  for (int64_t tokens : {1, 7, 8, 9, 16}) {
    StatePool a = pool_of({.slots = 2, .draft_slots = 1, .pages = 3, .columns = 2}),
              b = pool_of({.slots = 1, .pages = 2});
    a.poison_free();
    std::vector<int32_t> pages = {3, 1};
    std::mt19937 rng(1);
    const auto noise = [&] { return static_cast<float>(rng() % 256); };
    for (int i = 0; i < 32; ++i) recurrent(a, 2)[i] = noise();
    for (int64_t row = 0; row < 3; ++row)
      for (int64_t i = 0; i < 24; ++i) window_row(a, 2, row)[i] = to_bf16(noise());
    for (int64_t t = 0; t < tokens; ++t)
      for (int64_t i = 0; i < 10; ++i)
        a.views()[1][0].at<bf16>(pages[static_cast<size_t>(t / 8)], t % 8)[i] = to_bf16(noise());
    std::vector<char> bytes(static_cast<size_t>(a.saved_bytes(tokens)));
    a.save(2, pages, tokens, bytes);
    // Into a pool of other numbers and other columns: what was not saved stays as it was there.
    b.poison_free();
    ASSERT_EQ(b.saved_bytes(tokens), a.saved_bytes(tokens));
    b.load(bytes, tokens, 1, std::vector<int32_t>{1, 2});
    for (int i = 0; i < 32; ++i) ASSERT_EQ(recurrent(b, 1)[i], recurrent(a, 2)[i]);
    for (int64_t row = 0; row < 3; ++row)
      for (int64_t i = 0; i < 24; ++i)
        ASSERT_EQ(to_float(window_row(b, 1, row)[i]), to_float(window_row(a, 2, row)[i]));
    for (int64_t t = 0; t < 16; ++t) {
      const float x = to_float(b.views()[1][0].at<bf16>(1 + static_cast<int32_t>(t / 8), t % 8)[3]);
      if (t < tokens) {
        ASSERT_EQ(x, to_float(a.views()[1][0].at<bf16>(pages[static_cast<size_t>(t / 8)], t % 8)[3]));
      } else {
        ASSERT_TRUE(std::isnan(x));
      }
    }
    for (size_t i = 0; i + 1 < bytes.size(); i += 2)
      ASSERT_FALSE(bytes[i] == '\xff' && bytes[i + 1] == '\xff') << "poison at byte " << i;
  }
}

// Against a ledger, in random order: no number is ever owned twice, counts always add up.
TEST(StatePool, RandomHistoriesNeverHandOutWhatIsOwned) {
  std::mt19937_64 rng(3);
  for (int history = 0; history < 200; ++history) {
    const PoolSize size{.slots = static_cast<int64_t>(1 + rng() % 5),
                        .draft_slots = static_cast<int64_t>(rng() % 5),
                        .pages = static_cast<int64_t>(1 + rng() % 9)};
    StatePool pool = pool_of(size);
    std::map<int32_t, int> pages;
    std::vector<int32_t> slots;
    for (int i = 0; i < 300; ++i) {
      switch (rng() % 6) {
        case 0:
          if (pool.free_pages() > 0) {
            ASSERT_EQ(pages[pool.take_page()]++, 0);
          }
          break;
        case 1:
          if (!pages.empty()) ++pages.begin()->second, pool.share_page(pages.begin()->first);
          break;
        case 2:
          if (pages.empty()) break;
          pool.drop_page(pages.rbegin()->first);
          if (--pages.rbegin()->second == 0) pages.erase(std::prev(pages.end()));
          break;
        case 3:
          if (pool.free_slots() > 0) slots.push_back(pool.take_slot());
          break;
        case 4:
          if (pool.free_draft_slots() > 0) slots.push_back(pool.take_draft_slot());
          break;
        case 5:
          if (slots.empty()) break;
          std::swap(slots[rng() % slots.size()], slots.back());
          pool.give_back_slot(slots.back());
          slots.pop_back();
          break;
      }
      ASSERT_EQ(pool.free_pages() + static_cast<int64_t>(pages.size()), size.pages);
      ASSERT_EQ(pool.free_slots() + pool.free_draft_slots() + static_cast<int64_t>(slots.size()),
                size.slots + size.draft_slots);
      auto sorted = slots;
      std::sort(sorted.begin(), sorted.end());
      ASSERT_EQ(std::adjacent_find(sorted.begin(), sorted.end()), sorted.end());
      ASSERT_TRUE(sorted.empty() || sorted.front() >= 1);
      ASSERT_FALSE(pages.contains(0));
    }
  }
}

// The numbers that engines with one allocator for both kinds publish (kda-runtime 6.4).
TEST(Capacity, ReproducesThePublicValues) {
  const int64_t recurrent_tp16 = 6 * 128 * 128 * 4, conv_tp16 = (3 + 7) * 3 * 768 * 2;
  EXPECT_EQ(recurrent_tp16 + conv_tp16, 393216 + 46080);
  EXPECT_EQ(tokens_of_shared_page(recurrent_tp16 + conv_tp16, 1152), 384);
  const int64_t recurrent_tp8 = 12 * 128 * 128 * 4;
  EXPECT_EQ(tokens_of_shared_page(recurrent_tp8 + 3 * 3 * 1536 * 2, 576), 1536);
  EXPECT_EQ(tokens_of_shared_page(recurrent_tp8 + 10 * 3 * 1536 * 2, 576), 1536);
  EXPECT_EQ(table_columns(133120, 384, 7), 354);
  double padding = 0;
  EXPECT_EQ(group_layers(24, 5, 69, &padding), (std::vector<int64_t>{29, 23, 23, 23}));
  EXPECT_NEAR(padding, 0.0435, 5e-5);
  group_layers(29, 0, 69, &padding);
  EXPECT_NEAR(padding, 0.2609, 5e-5) << "grouping by the joined size pads six times as much";
}

// The plan and the pool use one formula: what a pool of a size takes is what the formula says, buffer by buffer.
TEST(Capacity, ThePoolTakesWhatTheFormulaSays) {
  for (const PoolSize& size : {PoolSize{.slots = 1, .pages = 1}, PoolSize{.slots = 5, .draft_slots = 35, .pages = 9},
                               PoolSize{.slots = 3, .draft_slots = 3, .pages = 70, .columns = 2}}) {
    const LayerStates layers = two_layers(size.columns);
    StatePool pool(Device{}, layers, size);
    int64_t slots = 0, pages = 0;
    for (size_t l = 0; l < layers.size(); ++l)
      for (size_t i = 0; i < layers[l].size(); ++i) {
        const AnyView& v = pool.views()[l][i];
        (layers[l][i].kind == StateKind::slot ? slots : pages) +=
            device_bytes(Device{}, v.shape.numel() * dtype_bytes(v.dtype));
      }
    EXPECT_EQ(pool_bytes(Device{}, layers, StateKind::slot, size), slots);
    EXPECT_EQ(pool_bytes(Device{}, layers, StateKind::page, size), pages);
  }
}

}  // namespace
}  // namespace kdelta::runtime
