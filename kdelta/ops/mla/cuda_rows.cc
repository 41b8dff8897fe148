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

const char* mla_cuda_tensor_refuse(const MlaDesc& d) {
  using namespace mla_cuda;
  if (d.activation != DType::bf16 || d.cache != DType::bf16 || d.weight != DType::bf16)
    return "queries, cache or kv_b in another format than bf16";
  if (d.latent != kLatent || d.rope != kRope || d.nope != kNope || d.value != kValue)
    return "widths other than 128 + 64, 128 and 512";
  if (d.page_tokens % kBlock != 0) return "pages of no multiple of 32 tokens";
  if (!d.aligned) return "rows that do not begin at 16 bytes";
  return d.tokens > int64_t{1} << 24 ? "more than 16,777,216 tokens" : nullptr;
}
int64_t mla_cuda_tensor_scratch(const MlaDesc& d) {
  mla_cuda::Layout layout(nullptr);
  mla_cuda::decode_work(d, layout);
  return layout.bytes();
}

}  // namespace kdelta
