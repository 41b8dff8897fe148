// The device layer of a build without CUDA.
#include "kdelta/core/device.h"

#include "kdelta/core/cpu/memory.h"
#include "kdelta/core/error.h"

namespace kdelta {

int cuda_device_count() {
  return 0;
}

std::string cuda_device_summary() {
  return "this build has no CUDA (configure with the cuda preset)";
}

int64_t device_bytes(Device, int64_t bytes) {
  return cpu_rounded(bytes);
}

void* device_allocate(Device device, int64_t bytes) {
  if (device.kind != DeviceKind::cpu) fail(ErrorCode::unsupported, to_string(device), ": ", cuda_device_summary());
  return cpu_allocate(bytes);
}

void device_free(Device, void* data) noexcept {
  cpu_free(data);
}

}  // namespace kdelta
