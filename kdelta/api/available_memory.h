// What a load would take, held against what the machine has, before any of it is allocated.
#pragma once

#include <cstdint>
#include <string>

#include "kdelta/model/model.h"
#include "kdelta/runtime/engine.h"

namespace kdelta {

// Bytes this process may still take: the system's estimate (MemAvailable), or less where a control group limits it;
// a huge number where the system tells neither. `proc` and `cgroup` are the folders to read.
int64_t available_memory(const std::string& proc = "/proc", const std::string& cgroup = "/sys/fs/cgroup");

// Throws Error(out_of_memory) with the numbers and the options that shrink the plan when `weights`, bytes still to be
// allocated, and the plan exceed `available`. Mapped weights do not count: their pages come and go with the page cache.
// `drafter`: what the drafter says it takes.
// The plan is that of one thread, a lower bound: the engine makes the exact one, and a team for it, itself.
void check_memory(const Model& model, const runtime::EngineConfig& config, int64_t weights, int64_t available,
                  int64_t drafter = 0);

// The same for a CUDA device of which `available` bytes are free.
void check_device_memory(const runtime::EngineConfig& config, int64_t weights, const runtime::MemoryPlan& plan,
                         int64_t available);

}  // namespace kdelta
