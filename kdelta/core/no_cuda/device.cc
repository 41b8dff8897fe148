// The device layer of a build without CUDA: the CPU works, everything else refuses by name.
#include "kdelta/core/device.h"

#include "kdelta/core/cpu/memory.h"
#include "kdelta/core/no_cuda/refuse.h"

namespace kdelta {

void refuse_cuda(Device device) {
  fail(ErrorCode::unsupported, to_string(device), ": ", cuda_device_summary());
}

int cuda_device_count() {
  return 0;
}

std::string cuda_device_summary() {
  return "this build has no CUDA; one configured with -DKDELTA_CUDA=ON has it";
}

const DeviceProperties& device_properties(Device device) {
  refuse_cuda(device);
}

std::string device_refusal(Device device) {
  refuse_cuda(device);
}

int64_t device_free_bytes(Device device) {
  refuse_cuda(device);
}

int64_t device_bytes(Device, int64_t bytes) {
  return cpu_rounded(bytes);
}

void* device_allocate(Device device, int64_t bytes) {
  if (device.kind != DeviceKind::cpu) refuse_cuda(device);
  return cpu_allocate(bytes);
}

void device_free(Device, void* data) noexcept {
  cpu_free(data);
}

}  // namespace kdelta
