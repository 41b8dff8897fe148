#include "kdelta/io/prefault.h"

#include <sys/mman.h>

#include <algorithm>
#include <vector>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22  // Linux 5.14
#endif

namespace kdelta {

void prefault(const Checkpoint& checkpoint, const std::function<void(int64_t done, int64_t total)>& progress) {
  constexpr int64_t kPiece = int64_t{64} << 20;
  constexpr uintptr_t kPage = 4096;
  struct Range {
    uintptr_t begin = UINTPTR_MAX, end = 0;
  };
  std::vector<Range> files(static_cast<size_t>(checkpoint.file_count()));
  for (const TensorInfo& t : checkpoint.tensors()) {
    const auto at = reinterpret_cast<uintptr_t>(checkpoint.data(t));
    Range& r = files[static_cast<size_t>(t.file)];
    r.begin = std::min(r.begin, at / kPage * kPage);
    r.end = std::max(r.end, at + static_cast<uintptr_t>(t.bytes));
  }
  int64_t total = 0, done = 0;
  for (const Range& r : files) total += r.end > r.begin ? static_cast<int64_t>(r.end - r.begin) : 0;
  for (const Range& r : files) {
    for (uintptr_t at = r.begin; at < r.end; at += kPiece) {
      const auto bytes = std::min<int64_t>(kPiece, static_cast<int64_t>(r.end - at));
      (void)madvise(reinterpret_cast<void*>(at), static_cast<size_t>(bytes), MADV_POPULATE_READ);
      done += bytes;
      if (progress) progress(done, total);
    }
  }
}

}  // namespace kdelta
