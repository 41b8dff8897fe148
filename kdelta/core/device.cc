#include "kdelta/core/device.h"

#include <algorithm>
#include <charconv>

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

CudaLevel cuda_code_level(std::string_view architectures, int compute_major, int compute_minor) {
  const int device = compute_major * 10 + compute_minor;
  CudaLevel level = CudaLevel::none;
  while (compute_major >= 8 && !architectures.empty()) {
    const size_t end = std::min(architectures.find_first_of(" ;,"), architectures.size());
    const std::string_view name = architectures.substr(0, end);
    architectures.remove_prefix(std::min(end + 1, architectures.size()));
    int number = 0;
    const auto [rest, error] = std::from_chars(name.data(), name.data() + name.size(), number);
    if (name.empty()) continue;
    const std::string_view kind(rest, static_cast<size_t>(name.data() + name.size() - rest));
    bool runs = false;
    if (error != std::errc{})
      runs = true;  // "all", "native": whatever is there
    else if (kind.starts_with('a') || kind.starts_with('f'))
      runs = number == device;
    else
      runs = number <= device && (!kind.ends_with("-real") || number / 10 == compute_major);
    if (!runs) continue;
    level = std::max(level, number == 90 && kind.starts_with('a') ? CudaLevel::sm90a : CudaLevel::sm80);
  }
  return level;
}

}  // namespace kdelta
