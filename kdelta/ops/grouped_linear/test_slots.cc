// How the CUDA grid covers the pairs, without a device.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "kdelta/ops/grouped_linear/cuda_tiles.h"

namespace kdelta::grouped {
namespace {

// Boundaries of E experts among P pairs, the last "expert" those past them all.
std::vector<int64_t> boundaries(int64_t E, int64_t P, std::mt19937_64& rng) {
  std::vector<int64_t> cut(static_cast<size_t>(E));
  const int64_t used = static_cast<int64_t>(rng() % static_cast<uint64_t>(P + 1));
  for (int64_t& c : cut) c = rng() % 3 == 0 ? used : static_cast<int64_t>(rng() % static_cast<uint64_t>(used + 1));
  std::sort(cut.begin(), cut.end());
  cut.insert(cut.begin(), 0);
  cut.back() = E > 0 ? used : 0;
  cut.push_back(P);
  return cut;
}

TEST(GroupedSlots, EveryPairIsInExactlyOneTileAndASlotIsAtMostOneTile) {
  std::mt19937_64 rng(1);
  for (int64_t tile : {8, 16, 64, 128})
    for (int64_t E : {1, 2, 7, 60})
      for (int64_t P : {1, 5, 8, 9, 64, 130, 700})
        for (int turn = 0; turn < 8; ++turn) {
          const std::vector<int64_t> begin = boundaries(E, P, rng);
          const Slots slots = slots_of(P, E, tile);
          std::vector<int> covered(static_cast<size_t>(P));
          for (int64_t s = 0; s < slots.count; ++s) {
            int tiles = 0;
            for (int64_t e = 0; e <= E; ++e) {
              const int64_t end = begin[static_cast<size_t>(e) + 1];
              const int64_t first = first_pair(s, slots.by_pair, e, begin[static_cast<size_t>(e)], end, tile);
              if (first < 0) continue;
              ++tiles;
              for (int64_t p = first; p < std::min(first + tile, end); ++p) ++covered[static_cast<size_t>(p)];
            }
            ASSERT_LE(tiles, 1) << "slot " << s << " tile " << tile << " E " << E << " P " << P;
          }
          for (int64_t p = 0; p < P; ++p)
            ASSERT_EQ(covered[static_cast<size_t>(p)], 1)
                << "pair " << p << " tile " << tile << " E " << E << " P " << P;
        }
}

TEST(GroupedSlots, GrowWithPairsByTilesAndNeverExceedTheCapacities) {
  EXPECT_EQ(slots_of(64, 256, 8).count, 64);
  EXPECT_TRUE(slots_of(64, 256, 8).by_pair);
  EXPECT_EQ(slots_of(65536, 256, 128).count, 65536 / 128 + 257);
  EXPECT_FALSE(slots_of(65536, 256, 128).by_pair);
  EXPECT_EQ(slots_of(0, 4, 8).count, 0);
}

TEST(GroupedSlots, BlocksOfFp4RunAllAtOnceWithFewTilesEachOrInRounds) {
  constexpr int64_t kResident = 528;
  EXPECT_EQ(fp4_tiles(1, kResident), 1);
  EXPECT_EQ(fp4_tiles(528, kResident), 1);
  EXPECT_EQ(fp4_tiles(16 * 96, kResident), 3);    // one token of Kimi K3
  EXPECT_EQ(fp4_tiles(128 * 48, kResident), 12);  // eight
  EXPECT_EQ(fp4_tiles(16 * 528, kResident), 16);
  EXPECT_EQ(fp4_tiles(16 * 528 + 1, kResident), 8);
  EXPECT_EQ(fp4_tiles(1024 * 48, kResident), 8);
}

}  // namespace
}  // namespace kdelta::grouped
