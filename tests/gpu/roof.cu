#include <cuda_profiler_api.h>

#include "kdelta/core/cuda/runtime.h"
#include "kdelta/ops/common/cuda/device.cuh"
#include "tests/gpu/roof.h"

namespace kdelta::gpu_bench {
namespace {

constexpr int kThreads = 512, kUnroll = 8;

__global__ void __launch_bounds__(kThreads) read_words(const uint4* data, int64_t words, uint4* never) {
  uint4 sum = make_uint4(0, 0, 0, 0);
  const int64_t step = int64_t{gridDim.x} * kThreads;
  int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  for (; i + (kUnroll - 1) * step < words; i += kUnroll * step) {
    uint4 v[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) v[u] = __ldcs(data + i + u * step);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) sum.x ^= v[u].x, sum.y ^= v[u].y, sum.z ^= v[u].z, sum.w ^= v[u].w;
  }
  if (sum.x == 0x12345678u && sum.y == 0x9abcdef0u && sum.z == 1 && sum.w == 2) *never = sum;
}

__global__ void __launch_bounds__(kThreads) copy_words(const uint4* from, uint4* to, int64_t words) {
  constexpr int kDepth = 4;
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < words; i += kDepth * step) {
    uint4 v[kDepth];
#pragma unroll
    for (int u = 0; u < kDepth; ++u)
      if (i + u * step < words) v[u] = __ldcs(from + i + u * step);
#pragma unroll
    for (int u = 0; u < kDepth; ++u) {
      v[u].x ^= 1;
      if (i + u * step < words) __stcs(to + i + u * step, v[u]);
    }
  }
}

__global__ void fill_words(uint32_t* data, int64_t words) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < words; i += step) {
    uint64_t r = static_cast<uint64_t>(i + 1) * 0x9e3779b97f4a7c15u;
    r ^= r >> 29, r *= 0xbf58476d1ce4e5b9u, r ^= r >> 32;
    const auto half = [&](uint32_t x) { return ((x & 1u) << 15) | 0x3c00u | (x >> 1 & 0x37bu); };
    data[i] = half(static_cast<uint32_t>(r)) | half(static_cast<uint32_t>(r >> 32)) << 16;
  }
}

__global__ void spin(int64_t nanoseconds) {
  uint64_t begin = 0, now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (static_cast<int64_t>(now - begin) < nanoseconds);
}

void check_launch(Stream& stream, const char* what) {
  cuda_check(cudaGetLastError(), stream.device(), what);
}

}  // namespace

void enqueue_roof(Stream& stream, RoofKind kind, void* memory, int64_t bytes, int multiprocessors) {
  auto* words = static_cast<uint4*>(memory);
  const int64_t n = bytes / 16;
  const auto grid = static_cast<unsigned>(multiprocessors * 4);
  switch (kind) {
    case RoofKind::read:
      read_words<<<grid, kThreads, 0, native(stream)>>>(words, n, words);
      break;
    case RoofKind::copy:
      copy_words<<<grid, kThreads, 0, native(stream)>>>(words, words + n / 2, n / 2);
      break;
    case RoofKind::update:
      copy_words<<<grid, kThreads, 0, native(stream)>>>(words, words, n);
      break;
  }
  check_launch(stream, "roof");
}

void enqueue_fill(Stream& stream, void* memory, int64_t bytes) {
  if (bytes < 4) return;
  fill_words<<<1024, 256, 0, native(stream)>>>(static_cast<uint32_t*>(memory), bytes / 4);
  check_launch(stream, "fill");
}

void enqueue_delay(Stream& stream, int64_t nanoseconds) {
  spin<<<1, 1, 0, native(stream)>>>(nanoseconds);
  check_launch(stream, "delay");
}

void begin_profile() {
  cuda_check(cudaDeviceSynchronize(), Device{DeviceKind::cuda, 0}, "cudaDeviceSynchronize");
  cuda_check(cudaProfilerStart(), Device{DeviceKind::cuda, 0}, "cudaProfilerStart");
}

void end_profile() {
  cuda_check(cudaDeviceSynchronize(), Device{DeviceKind::cuda, 0}, "cudaDeviceSynchronize");
  cuda_check(cudaProfilerStop(), Device{DeviceKind::cuda, 0}, "cudaProfilerStop");
}

}  // namespace kdelta::gpu_bench
