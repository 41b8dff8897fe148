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

const char* to_string(CudaLevel level) {
  switch (level) {
    case CudaLevel::none:
      return "none";
    case CudaLevel::sm80:
      return "cuda sm80";
    case CudaLevel::sm90a:
      return "cuda sm90a";
  }
  KDELTA_UNREACHABLE("CUDA level", level);
}

}  // namespace kdelta
