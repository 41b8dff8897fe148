// The kernels that measure what the device can do at most, and the one that fills data.
#pragma once

#include "kdelta/core/exec.h"
#include "tests/gpu/bench.h"

namespace kdelta::gpu_bench {

// Enqueues one pass over `bytes` of the memory (copy: half of it to the other half).
void enqueue_roof(Stream& stream, RoofKind kind, void* memory, int64_t bytes, int multiprocessors);
// Finite pseudo-random words: bf16 magnitudes of 2^-7 to 1, no FP8 NaN.
void enqueue_fill(Stream& stream, void* memory, int64_t bytes);
// One thread that spins for that many nanoseconds: an injected delay.
void enqueue_delay(Stream& stream, int64_t nanoseconds);
// What lies between is what a profiler started with its own profiling off sees.
void begin_profile();
void end_profile();

}  // namespace kdelta::gpu_bench
