// Where memory lives and work runs. CUDA types never appear here: a CPU-only build links core/no_cuda in place of
// core/cuda.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kdelta {

enum class DeviceKind : uint8_t { cpu, cuda };

struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;
  bool operator==(const Device&) const = default;
};

std::string to_string(Device device);

// What a CUDA device can execute; levels are cumulative.
enum class CudaLevel : uint8_t {
  none,
  sm80,   // Ampere and later: portable kernels
  sm90a,  // Hopper alone: wgmma, tensor maps, clusters, setmaxnreg
};
const char* to_string(CudaLevel level);

// What code built for `architectures` ("80-real 90a-real", as CMake names them) can do on a device of that compute
// capability; none: there is no code for it. Machine code runs from its own minor number on, code of an "a" on its own
// device alone, and PTX on whatever is as new.
CudaLevel cuda_code_level(std::string_view architectures, int compute_major, int compute_minor);

// Whether this build has CUDA code.
inline constexpr bool kCudaBuild = KDELTA_CUDA_BUILD != 0;

struct DeviceProperties {
  std::string name;  // "NVIDIA H200"
  CudaLevel level = CudaLevel::none;
  int compute_major = 0, compute_minor = 0;
  int multiprocessors = 0;
  int64_t memory_bytes = 0, l2_bytes = 0;
  int64_t shared_bytes_per_block = 0;  // the most that a kernel may ask for
};
// Read once per device. Throws Error(unsupported) naming the device when there is none, or none that this build has
// code for.
const DeviceProperties& device_properties(Device device);
// Why this build has nothing to run on that device, which is there; empty: it has.
std::string device_refusal(Device device);
// Bytes of device memory free now.
int64_t device_free_bytes(Device device);

// Number of usable CUDA devices: 0 in a CPU-only build, without a driver, or without a device. Never throws.
int cuda_device_count();
// One line for people: "NVIDIA H200, compute capability 9.0, 139 GiB" or why there is none.
std::string cuda_device_summary();

// Raw memory of one device. allocate throws Error(out_of_memory) naming the size; contents are undefined.
// device_bytes says what that takes in fact, for memory plans.
int64_t device_bytes(Device device, int64_t bytes);
void* device_allocate(Device device, int64_t bytes);
void device_free(Device device, void* data) noexcept;

}  // namespace kdelta
