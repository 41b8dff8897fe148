#include <gtest/gtest.h>

#include <sys/mman.h>
#include <unistd.h>
#include <cstdio>
#include <random>
#include <set>

#include "kdelta/io/prefault.h"

namespace kdelta {
namespace {

constexpr uintptr_t kPage = 4096, kBase = 1000 * kPage;

MappedRows at(uintptr_t begin, int64_t rows, int64_t bytes, int64_t stride) {
  return {reinterpret_cast<const void*>(begin), rows, bytes, stride};
}

std::set<uintptr_t> numbers(const std::vector<PageRange>& ranges) {
  std::set<uintptr_t> pages;
  for (const PageRange& r : ranges)
    for (uintptr_t p = r.begin; p < r.end; p += kPage) pages.insert(p / kPage);
  return pages;
}

TEST(Prefault, RangesAreThePagesOfTheRowsEachOnceInOrder) {
  std::mt19937 rng(1);
  for (int i = 0; i < 200; ++i) {
    std::vector<MappedRows> rows;
    std::set<uintptr_t> want;
    for (int m = 0; m < 6; ++m) {
      const uintptr_t begin = kBase + rng() % (40 * kPage);
      const auto bytes = static_cast<int64_t>(rng() % 9000), n = static_cast<int64_t>(rng() % 5);
      const int64_t stride = bytes + static_cast<int64_t>(rng() % 3 * 5000);
      rows.push_back(at(begin, n, bytes, stride));
      for (int64_t r = 0; r < n; ++r)
        for (int64_t b = 0; b < bytes; ++b) want.insert((begin + static_cast<uintptr_t>(r * stride + b)) / kPage);
    }
    const std::vector<PageRange> ranges = pages_of(rows);
    EXPECT_EQ(numbers(ranges), want);
    for (size_t r = 1; r < ranges.size(); ++r) EXPECT_GT(ranges[r].begin, ranges[r - 1].end) << "joined";
  }
}

TEST(Prefault, ColumnsOfAWideMatrixLeaveThePagesBetweenThem) {
  const auto ranges = pages_of(std::vector{at(kBase, 100, 512, 8 * 4096)});
  EXPECT_EQ(ranges.size(), 100u);
  EXPECT_EQ(numbers(ranges).size(), 100u);
  EXPECT_EQ(pages_of(std::vector{at(kBase, 100, 512, 1024)}).size(), 1u) << "no page lies between narrow rows";
  EXPECT_TRUE(pages_of({}).empty());
}

TEST(Prefault, TellsHowFarItIsAndEndsAtTheTotal) {
  constexpr size_t kPages = 64;
  FILE* file = std::tmpfile();
  ASSERT_EQ(ftruncate(fileno(file), kPages * kPage), 0);
  void* map = mmap(nullptr, kPages * kPage, PROT_READ, MAP_PRIVATE, fileno(file), 0);
  ASSERT_NE(map, MAP_FAILED);
  std::vector<std::pair<int64_t, int64_t>> told;
  prefault(std::vector{at(reinterpret_cast<uintptr_t>(map) + 10, 4, 100, 16 * 4096)},
           [&](int64_t done, int64_t total) { told.emplace_back(done, total); });
  EXPECT_EQ(told.back(), std::pair(int64_t{4 * 4096}, int64_t{4 * 4096}));
  munmap(map, kPages * kPage);
  std::fclose(file);
}

}  // namespace
}  // namespace kdelta
