#include "kdelta/core/current_device.h"

#include "kdelta/core/no_cuda/refuse.h"

namespace kdelta {

KeepCurrentDevice::KeepCurrentDevice(Device device) {
  if (device.kind != DeviceKind::cpu) refuse_cuda(device);
}
KeepCurrentDevice::~KeepCurrentDevice() = default;

}  // namespace kdelta
