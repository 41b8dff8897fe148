// Moves and fills of a CUDA device.
#include <cuda_bf16.h>

#include <algorithm>
#include <array>

#include "kdelta/core/cuda/runtime.h"
#include "kdelta/core/moves.h"

namespace kdelta::device {
namespace {

constexpr int kThreads = 256;
constexpr int kUnroll = 4;
constexpr int kMoves = 128;  // of one launch: they travel as a kernel argument, so a captured launch keeps them

struct Moves {
  std::array<Move, kMoves> move;
};

bool overlaps(const Move& m) {
  const auto to = reinterpret_cast<uintptr_t>(m.to), from = reinterpret_cast<uintptr_t>(m.from);
  const uintptr_t apart = to > from ? to - from : from - to;
  return apart < static_cast<uintptr_t>(m.bytes);
}

// Elements [begin, begin + kThreads * kUnroll) of a move, read whole before any is written.
template <class T>
__device__ void move_tile(const Move& m, int64_t begin, bool fence) {
  const int64_t count = m.bytes / static_cast<int64_t>(sizeof(T));
  const T* from = static_cast<const T*>(m.from);
  T* to = static_cast<T*>(m.to);
  T value[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t i = begin + u * kThreads + threadIdx.x;
    if (i < count) value[u] = from[i];
  }
  if (fence) __syncthreads();
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t i = begin + u * kThreads + threadIdx.x;
    if (i < count) to[i] = value[u];
  }
  if (fence) __syncthreads();
}

template <class T>
__device__ void run_move(const Move& m) {
  constexpr int64_t kTile = kThreads * kUnroll;
  const int64_t count = m.bytes / static_cast<int64_t>(sizeof(T));
  const auto to = reinterpret_cast<uintptr_t>(m.to), from = reinterpret_cast<uintptr_t>(m.from);
  const bool shared = (to > from ? to - from : from - to) < static_cast<uintptr_t>(m.bytes);
  if (!shared) {
    for (int64_t t = blockIdx.x * kTile; t < count; t += gridDim.x * kTile) move_tile<T>(m, t, false);
    return;
  }
  // One block, from the end that the destination points away from: what a tile overwrites has been read.
  if (blockIdx.x != 0) return;
  const int64_t tiles = (count + kTile - 1) / kTile;
  for (int64_t i = 0; i < tiles; ++i) move_tile<T>(m, (to < from ? i : tiles - 1 - i) * kTile, true);
}

__global__ void __launch_bounds__(kThreads) run_moves(const __grid_constant__ Moves moves) {
  const Move& m = moves.move[blockIdx.y];
  const auto bits =
      reinterpret_cast<uintptr_t>(m.to) | reinterpret_cast<uintptr_t>(m.from) | static_cast<uintptr_t>(m.bytes);
  if (bits % 16 == 0)
    run_move<uint4>(m);
  else if (bits % 4 == 0)
    run_move<uint32_t>(m);
  else
    run_move<uint8_t>(m);
}

__device__ __forceinline__ void put(float* to, float x) {
  *to = x;
}
__device__ __forceinline__ void put(__nv_bfloat16* to, float x) {
  *to = __float2bfloat16_rn(x);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    fill_values(T* data, int64_t count, float center, float scale, uint64_t seed) {
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += step)
    put(data + i, center + scale * uniform_value(seed, static_cast<uint64_t>(i)));
}

}  // namespace

void move_bytes(Stream& stream, std::span<const Move> all) {
  for (size_t first = 0; first < all.size();) {
    Moves some{};
    unsigned n = 0;
    int64_t most = 0;
    for (; first < all.size() && n < kMoves; ++first) {
      if (all[first].bytes == 0 || all[first].to == all[first].from) continue;
      some.move[n++] = all[first];
      if (!overlaps(all[first])) most = std::max(most, all[first].bytes);
    }
    if (n == 0) continue;
    constexpr int64_t kBlock = int64_t{kThreads} * kUnroll * 16;
    const dim3 grid(static_cast<unsigned>(std::clamp<int64_t>((most + kBlock - 1) / kBlock, 1, 64)), n);
    run_moves<<<grid, kThreads, 0, native(stream)>>>(some);
    cuda_check(cudaGetLastError(), stream.device(), "moves");
  }
}

void fill_uniform(Stream& stream, void* data, DType dtype, int64_t count, float center, float scale, uint64_t seed) {
  if (count == 0) return;
  const auto grid = static_cast<unsigned>(std::min<int64_t>((count + kThreads - 1) / kThreads, 132 * 16));
  if (dtype == DType::f32)
    fill_values<<<grid, kThreads, 0, native(stream)>>>(static_cast<float*>(data), count, center, scale, seed);
  else
    fill_values<<<grid, kThreads, 0, native(stream)>>>(static_cast<__nv_bfloat16*>(data), count, center, scale, seed);
  cuda_check(cudaGetLastError(), stream.device(), "uniform values");
}

}  // namespace kdelta::device
