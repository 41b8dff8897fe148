// The CUDA runtime behind the opaque handles, for core/cuda and for the ops' CUDA files.
#pragma once

#include <cuda_runtime_api.h>

#include "kdelta/core/error.h"
#include "kdelta/core/stream.h"

namespace kdelta {

// Throws Error(out_of_memory) or Error(failed): "cuda:0: WHAT: the runtime's words".
void cuda_check(cudaError_t status, Device device, const char* what);

inline cudaStream_t native(const Stream& stream) {
  return static_cast<cudaStream_t>(stream.handle());
}
inline cudaEvent_t native(const Event& event) {
  return static_cast<cudaEvent_t>(event.handle());
}

}  // namespace kdelta
