// What the CUDA rows take and how much scratch they need; compiled in every build, for --explain and the planner.
#include "kdelta/ops/mla/cuda_layout.h"

namespace kdelta {

const char* mla_cuda_portable_refuse(const MlaDesc& d) {
  if (d.heads > 65535) return "more than 65535 heads";
  return mla_cuda::portable_shared_bytes(1, d.latent, d.rope) > mla_cuda::kMostShared
             ? "latents whose q' and sums of one head pass 96 KB"
             : nullptr;
}

int64_t mla_cuda_portable_scratch(const MlaDesc& d) {
  return mla_cuda::portable_scratch(d);
}

}  // namespace kdelta
