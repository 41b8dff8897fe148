// The device layer of a CUDA build: devices and raw memory through the CUDA runtime.
#include "kdelta/core/device.h"

#include <cuda_runtime_api.h>

#include "kdelta/core/cpu/memory.h"
#include "kdelta/core/error.h"

namespace kdelta {

int cuda_device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

std::string cuda_device_summary() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) return str("no CUDA device: ", cudaGetErrorString(status));
  if (count == 0) return "no CUDA device is visible";
  cudaDeviceProp p{};
  if (cudaGetDeviceProperties(&p, 0) != cudaSuccess) return "CUDA device 0 gives no properties";
  return str(p.name, ", compute capability ", p.major, ".", p.minor, ", ", p.totalGlobalMem >> 30, " GiB");
}

int64_t device_bytes(Device device, int64_t bytes) {
  if (device.kind == DeviceKind::cpu) return cpu_rounded(bytes);
  return (bytes + 511) / 512 * 512;  // cudaMalloc's granularity at the least
}

void* device_allocate(Device device, int64_t bytes) {
  if (device.kind == DeviceKind::cpu) return cpu_allocate(bytes);
  if (bytes == 0) return nullptr;
  void* data = nullptr;
  cudaError_t status = cudaSetDevice(device.index);
  if (status == cudaSuccess) status = cudaMalloc(&data, static_cast<size_t>(bytes));
  if (status != cudaSuccess)
    fail(ErrorCode::out_of_memory, "cannot allocate ", bytes, " bytes on ", to_string(device), ": ",
         cudaGetErrorString(status));
  return data;
}

void device_free(Device device, void* data) noexcept {
  if (device.kind == DeviceKind::cpu) return cpu_free(data);
  (void)cudaFree(data);  // a broken context has already been reported by the call that broke it
}

}  // namespace kdelta
