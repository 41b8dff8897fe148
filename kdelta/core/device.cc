#include "kdelta/core/device.h"

#include "kdelta/core/check.h"

namespace kdelta {

std::string to_string(Device device) {
  switch (device.kind) {
    case DeviceKind::cpu:
      return "cpu";
    case DeviceKind::cuda:
      return "cuda:" + std::to_string(device.index);
  }
  KDELTA_UNREACHABLE("device kind", device.kind);
}

}  // namespace kdelta
