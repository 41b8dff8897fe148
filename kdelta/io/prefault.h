// Brings pages of mapped files into memory in order, so that the first tokens do not wait for the disk one page fault
// at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace kdelta {

// Rows of bytes, `stride` apart, of a mapped file: a matrix, or a rank's columns of one.
struct MappedRows {
  const void* data = nullptr;
  int64_t rows = 0, bytes = 0, stride = 0;
};

// The pages that these rows touch, each once, as ranges of addresses in order. Rows less than a page apart share one.
struct PageRange {
  uintptr_t begin = 0, end = 0;
  int64_t bytes() const { return static_cast<int64_t>(end - begin); }
};
std::vector<PageRange> pages_of(std::span<const MappedRows> rows);

// Advice to the kernel: a system that cannot populate simply faults later. `progress` may be empty; called about every
// 64 MB.
void prefault(std::span<const MappedRows> rows, const std::function<void(int64_t done, int64_t total)>& progress);

}  // namespace kdelta
