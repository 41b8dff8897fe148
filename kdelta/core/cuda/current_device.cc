// By the driver's contexts, which every CUDA runtime of a process shares: to set the device instead would bring a
// context of device 0 to life for a thread that has none.
#include "kdelta/core/current_device.h"

#include <cuda.h>

#include "kdelta/core/cuda/runtime.h"

namespace kdelta {
namespace {

struct Driver {
  CUresult (*get)(CUcontext*) = nullptr;
  CUresult (*set)(CUcontext) = nullptr;
};

const Driver& driver(Device device) {
  static const Driver found = [&] {
    (void)device_properties(device);  // refuses by name what is not there
    void *get = nullptr, *set = nullptr;
    cuda_check(cudaGetDriverEntryPointByVersion("cuCtxGetCurrent", &get, 12000, cudaEnableDefault, nullptr), device,
               "cuCtxGetCurrent");
    cuda_check(cudaGetDriverEntryPointByVersion("cuCtxSetCurrent", &set, 12000, cudaEnableDefault, nullptr), device,
               "cuCtxSetCurrent");
    return Driver{reinterpret_cast<decltype(Driver::get)>(get), reinterpret_cast<decltype(Driver::set)>(set)};
  }();
  return found;
}

}  // namespace

KeepCurrentDevice::KeepCurrentDevice(Device device) {
  if (device.kind != DeviceKind::cuda) return;
  CUcontext current = nullptr;
  kept_ = driver(device).get(&current) == CUDA_SUCCESS;
  before_ = current;
}

KeepCurrentDevice::~KeepCurrentDevice() {
  if (kept_) (void)driver({}).set(static_cast<CUcontext>(before_));
}

}  // namespace kdelta
