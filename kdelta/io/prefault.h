// Brings a checkpoint's pages into memory in order, so that the first tokens do not wait for the disk one page fault at
// a time.
#pragma once

#include <functional>

#include "kdelta/io/checkpoint.h"

namespace kdelta {

// Advice to the kernel: a system that cannot populate simply faults later. `progress` may be empty; called about every
// 64 MB.
void prefault(const Checkpoint& checkpoint, const std::function<void(int64_t done, int64_t total)>& progress);

}  // namespace kdelta
