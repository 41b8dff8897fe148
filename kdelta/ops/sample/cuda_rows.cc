// What the CUDA rows of sample_device take and how much scratch they need; compiled in every build.
#include "kdelta/ops/sample/cuda_layout.h"

namespace kdelta {

const char* sample_device_cuda_cluster_refuse(const SampleDeviceDesc& d) {
  return sample_cuda::slice_of(d.vocabulary, sample_cuda::kClusterBlocks) > sample_cuda::kMostSlice
             ? "a vocabulary of more than 393,216"
             : nullptr;
}

int64_t sample_device_cuda_scratch(const SampleDeviceDesc& d) {
  return sample_cuda::device_work_bytes(d, 1);
}
int64_t sample_device_cuda_cluster_scratch(const SampleDeviceDesc& d) {
  return sample_cuda::device_work_bytes(d, sample_cuda::kClusterBlocks);
}

}  // namespace kdelta
