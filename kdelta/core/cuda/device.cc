// The device layer of a CUDA build: devices and raw memory through the CUDA runtime.
#include "kdelta/core/device.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <utility>

#include "kdelta/core/check.h"
#include "kdelta/core/cpu/memory.h"
#include "kdelta/core/cuda/runtime.h"

namespace kdelta {
namespace {

constexpr int kMaxDevices = 64;

struct KnownDevice {
  DeviceProperties properties;
  std::string refusal;
};

KnownDevice read_device(Device device) {
  cudaDeviceProp p{};
  cuda_check(cudaGetDeviceProperties(&p, device.index), device, "properties");
  DeviceProperties out;
  out.name = p.name;
  out.compute_major = p.major, out.compute_minor = p.minor;
  out.level = cuda_code_level(KDELTA_CUDA_ARCHITECTURES, p.major, p.minor);
  out.multiprocessors = p.multiProcessorCount;
  out.memory_bytes = static_cast<int64_t>(p.totalGlobalMem);
  out.l2_bytes = p.l2CacheSize;
  out.shared_bytes_per_block = static_cast<int64_t>(p.sharedMemPerBlockOptin);
  std::string refusal;
  if (out.level == CudaLevel::none) {
    refusal = str(out.name, ", compute capability ", p.major, ".", p.minor, ": this build has code for ",
                  KDELTA_CUDA_ARCHITECTURES, ", none for it; ");
    refusal += p.major < 8
                   ? "8.0 is the least"
                   : str("one configured with -DCMAKE_CUDA_ARCHITECTURES=", p.major * 10 + p.minor, "-real has it");
  }
  return {std::move(out), std::move(refusal)};
}

// Read once. Throws when it is not there.
const KnownDevice& known_device(Device device) {
  static std::array<KnownDevice, kMaxDevices> known;
  static std::array<std::once_flag, kMaxDevices> read;
  static const int count = cuda_device_count();  // asked once per op
  if (device.kind != DeviceKind::cuda || device.index < 0 || device.index >= std::min(count, kMaxDevices))
    fail(ErrorCode::unsupported, to_string(device), ": ", count, " CUDA devices are visible");
  const auto i = static_cast<size_t>(device.index);
  std::call_once(read[i], [&] { known[i] = read_device(device); });
  return known[i];
}

}  // namespace

void cuda_check(cudaError_t status, Device device, const char* what) {
  if (status == cudaSuccess) return;
  const ErrorCode code = status == cudaErrorMemoryAllocation ? ErrorCode::out_of_memory : ErrorCode::failed;
  fail(code, to_string(device), ": ", what, ": ", cudaGetErrorString(status));
}

int cuda_device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

std::string cuda_device_summary() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) return str("no CUDA device: ", cudaGetErrorString(status));
  if (count == 0) return "no CUDA device is visible";
  const DeviceProperties& p = known_device({DeviceKind::cuda, 0}).properties;
  return str(p.name, ", compute capability ", p.compute_major, ".", p.compute_minor, ", ", p.memory_bytes >> 30,
             " GiB");
}

const DeviceProperties& device_properties(Device device) {
  const KnownDevice& known = known_device(device);
  if (!known.refusal.empty()) fail(ErrorCode::unsupported, to_string(device), ": ", known.refusal);
  return known.properties;
}

std::string device_refusal(Device device) {
  return known_device(device).refusal;
}

int64_t device_free_bytes(Device device) {
  size_t free = 0, total = 0;
  cuda_check(cudaSetDevice(device.index), device, "select");
  cuda_check(cudaMemGetInfo(&free, &total), device, "free memory");
  return static_cast<int64_t>(free);
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
  if (status != cudaSuccess) {
    (void)cudaGetLastError();  // a refused allocation breaks nothing: the next call must not find it
    fail(ErrorCode::out_of_memory, "cannot allocate ", bytes, " bytes on ", to_string(device), ": ",
         cudaGetErrorString(status));
  }
  return data;
}

void device_free(Device device, void* data) noexcept {
  if (device.kind == DeviceKind::cpu) return cpu_free(data);
  (void)cudaFree(data);  // a broken context has already been reported by the call that broke it
}

}  // namespace kdelta
