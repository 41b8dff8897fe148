#pragma once

#include "kdelta/core/device.h"
#include "kdelta/core/error.h"

namespace kdelta {

// Throws Error(unsupported): "cuda:0: this build has no CUDA ...".
[[noreturn]] void refuse_cuda(Device device);

}  // namespace kdelta
