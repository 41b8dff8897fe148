// Where memory lives and work runs. CUDA types never appear here: a CPU-only build links core/no_cuda in place of
// core/cuda.
#pragma once

#include <cstdint>
#include <string>

namespace kdelta {

enum class DeviceKind : uint8_t { cpu, cuda };

struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;
  bool operator==(const Device&) const = default;
};

std::string to_string(Device device);

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
