// Which CUDA device is a thread's current one is the caller's: Stream and what makes memory change it.
#pragma once

#include "kdelta/core/device.h"

namespace kdelta {

// While it lives the thread may change its current device; afterwards that is what it was, also when it was none yet.
// Nothing for the CPU.
class KeepCurrentDevice {
 public:
  explicit KeepCurrentDevice(Device device);
  ~KeepCurrentDevice();
  KeepCurrentDevice(const KeepCurrentDevice&) = delete;
  KeepCurrentDevice& operator=(const KeepCurrentDevice&) = delete;

 private:
  [[maybe_unused]] bool kept_ = false;       // a build without CUDA never keeps one
  [[maybe_unused]] void* before_ = nullptr;  // the driver's context
};

}  // namespace kdelta
