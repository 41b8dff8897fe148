// Scratch of sample_device's CUDA rows: a function of the description alone.
#pragma once

#include "kdelta/ops/sample/variants.h"

namespace kdelta::sample_cuda {

inline constexpr int64_t kMostRows = 64;  // of a launch: more take turns, so that scratch stays bounded
inline constexpr int kClusterBlocks = 8;
inline constexpr int64_t kMostSlice = 48 * 1024;  // ids of a block of a cluster, in its shared memory

// Ids of each of `blocks` blocks.
inline int64_t slice_of(int64_t vocabulary, int64_t blocks) {
  return (vocabulary + blocks * 32 - 1) / (blocks * 32) * 32;
}

struct DeviceWork {
  int32_t* count;  // [rows, V] how often a token was seen
  uint64_t* list;  // [rows, W]
  float* x;        // [rows, V] one block a row; a cluster keeps it in shared memory
};
inline int64_t device_work_bytes(const SampleDeviceDesc& d, int blocks) {
  const int64_t rows = std::min(d.rows, kMostRows);
  return rows * (8 * d.most + (blocks == 1 ? 8 : 4) * d.vocabulary);
}
inline DeviceWork device_work(const SampleDeviceDesc& d, int blocks, void* scratch) {
  const int64_t rows = std::min(d.rows, kMostRows);
  DeviceWork w{};
  w.list = static_cast<uint64_t*>(scratch);
  w.count = reinterpret_cast<int32_t*>(w.list + rows * d.most);
  if (blocks == 1) w.x = reinterpret_cast<float*>(w.count + rows * d.vocabulary);
  return w;
}

}  // namespace kdelta::sample_cuda
