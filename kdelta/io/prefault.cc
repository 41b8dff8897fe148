#include "kdelta/io/prefault.h"

#include <sys/mman.h>

#include <algorithm>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22  // Linux 5.14
#endif

namespace kdelta {
namespace {

constexpr uintptr_t kPage = 4096;

}  // namespace

std::vector<PageRange> pages_of(std::span<const MappedRows> all) {
  std::vector<PageRange> ranges;
  const auto add = [&](uintptr_t begin, int64_t bytes) {
    if (bytes <= 0) return;
    const uintptr_t end = (begin + static_cast<uintptr_t>(bytes) + kPage - 1) / kPage * kPage;
    begin = begin / kPage * kPage;
    // Rows come in order, so most join the last range.
    if (!ranges.empty() && ranges.back().begin <= begin && begin <= ranges.back().end)
      ranges.back().end = std::max(ranges.back().end, end);
    else
      ranges.push_back({begin, end});
  };
  for (const MappedRows& m : all) {
    const auto begin = reinterpret_cast<uintptr_t>(m.data);
    if (m.stride - m.bytes < static_cast<int64_t>(kPage)) {
      if (m.rows > 0) add(begin, (m.rows - 1) * m.stride + m.bytes);
      continue;
    }
    for (int64_t r = 0; r < m.rows; ++r) add(begin + static_cast<uintptr_t>(r * m.stride), m.bytes);
  }
  std::sort(ranges.begin(), ranges.end(), [](const PageRange& a, const PageRange& b) { return a.begin < b.begin; });
  size_t kept = 0;
  for (size_t i = 0; i < ranges.size(); ++i) {
    if (kept > 0 && ranges[i].begin <= ranges[kept - 1].end)
      ranges[kept - 1].end = std::max(ranges[kept - 1].end, ranges[i].end);
    else
      ranges[kept++] = ranges[i];
  }
  ranges.resize(kept);
  return ranges;
}

void prefault(std::span<const MappedRows> rows, const std::function<void(int64_t done, int64_t total)>& progress) {
  constexpr int64_t kPiece = int64_t{64} << 20;
  const std::vector<PageRange> ranges = pages_of(rows);
  int64_t total = 0, done = 0, told = 0;
  for (const PageRange& r : ranges) total += r.bytes();
  for (const PageRange& r : ranges) {
    for (uintptr_t at = r.begin; at < r.end; at += kPiece) {
      const auto bytes = std::min<int64_t>(kPiece, static_cast<int64_t>(r.end - at));
      (void)madvise(reinterpret_cast<void*>(at), static_cast<size_t>(bytes), MADV_POPULATE_READ);
      done += bytes;
      if (!progress || (done - told < kPiece && done < total)) continue;
      progress(done, total);
      told = done;
    }
  }
}

}  // namespace kdelta
