// Bytes from place to place on one device: states that are forked, settled, saved; and the values of weights that no
// file holds. With a stream everything is enqueued; without one (the CPU) it is done when the call returns.
#pragma once

#include <span>
#include <vector>

#include "kdelta/core/dtype.h"
#include "kdelta/core/stream.h"
#include "kdelta/core/tensor.h"

namespace kdelta {

struct Move {
  void* to = nullptr;
  const void* from = nullptr;
  int64_t bytes = 0;
};

// Every range a move writes is written as if all of its bytes had been read before: source and destination of one move
// may overlap. Ranges of different moves may not, unless both only read them. On a device all of them share few
// launches, whatever their number.
void move_bytes(Stream* stream, std::span<const Move> moves);

// Host memory to a device, or back, done when the call returns; plain copies without a stream. The host's side may be
// any memory, and may not overlap the device's.
void copy_now(Stream* stream, void* to, const void* from, int64_t bytes);

// A matrix whose rows have no gaps within them, of any device, in host memory: itself without a stream, else copied to
// `memory`, when the work enqueued before is done.
AnyConstView host_copy(Stream* stream, const AnyConstView& matrix, std::vector<char>& memory);

// data[i] = center + scale * u, rounded once to `dtype` (f32, bf16), u uniform in [-1, 1) from (seed, i) alone: the
// same on every device, by any number of threads.
void fill_uniform(Stream* stream, void* data, DType dtype, int64_t count, float center, float scale, uint64_t seed);

// u of element i.
constexpr KDELTA_INLINE float uniform_value(uint64_t seed, uint64_t i) {
  uint64_t z = seed + (i + 1) * 0x9e3779b97f4a7c15u;  // splitmix64
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return static_cast<float>(static_cast<int32_t>((z ^ (z >> 31)) >> 32)) * 0x1p-31f;
}

}  // namespace kdelta
