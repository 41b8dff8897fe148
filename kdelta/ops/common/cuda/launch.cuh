// Launching a kernel on an Exec: errors name the op, and a launch may overlap the tail of the kernel before it.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>

#include "kdelta/core/cuda/runtime.h"
#include "kdelta/ops/common/op.h"

namespace kdelta::cuda {

struct Launch {
  dim3 grid = 1;
  dim3 block = 128;
  int shared_bytes = 0;  // dynamic
  int cluster = 1;       // CTAs along x
  // Programmatic dependent launch: the kernel may begin while its predecessor still runs. Every thread of it calls
  // pdl_wait() before it touches global memory that anything before it wrote or still reads.
  bool pdl = false;
};

// Worth it up to about one wave: CTAs of a larger grid would hold the places that the predecessor still needs.
inline bool pdl_pays(const Target& target, int64_t ctas) {
  return target.cuda >= CudaLevel::sm90a && ctas <= target.multiprocessors;
}

template <class... Params, class... Args>
void launch(const Exec& ex, const char* op, const Launch& l, void (*kernel)(Params...), Args&&... args) {
  if (l.grid.x == 0 || l.grid.y == 0 || l.grid.z == 0) return;
  if (l.shared_bytes > 32 * 1024)  // what the kernel has of its own counts towards the 48 KB too
    cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, l.shared_bytes), ex.device,
               op);
  cudaLaunchAttribute attributes[2];
  cudaLaunchConfig_t config{};
  config.gridDim = l.grid;
  config.blockDim = l.block;
  config.dynamicSmemBytes = static_cast<size_t>(l.shared_bytes);
  config.stream = native(*ex.stream);
  config.attrs = attributes;
  if (l.pdl) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (l.cluster > 1) {
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs].val.clusterDim.x = static_cast<unsigned>(l.cluster);
    attributes[config.numAttrs].val.clusterDim.y = 1;
    attributes[config.numAttrs++].val.clusterDim.z = 1;
  }
  cuda_check(cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...), ex.device, op);
}

// A one-dimensional grid over `items`, at most `most` CTAs; the kernel strides.
inline unsigned grid_of(int64_t items, int64_t per_cta, int64_t most = int64_t{1} << 30) {
  return static_cast<unsigned>(std::min((items + per_cta - 1) / per_cta, most));
}

}  // namespace kdelta::cuda
