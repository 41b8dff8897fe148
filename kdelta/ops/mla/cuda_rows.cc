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

namespace {
const char* refuse_formats(const MlaDesc& d) {
  using namespace mla_cuda;
  if (d.activation != DType::bf16 || d.cache != DType::bf16 || d.weight != DType::bf16)
    return "queries, cache or kv_b in another format than bf16";
  return d.latent != kLatent || d.rope != kRope || d.nope != kNope || d.value != kValue
             ? "widths other than 128 + 64, 128 and 512"
             : nullptr;
}
}  // namespace

const char* mla_cuda_expanded_refuse(const MlaDesc& d) {
  if (const char* reason = refuse_formats(d)) return reason;
  if (d.n_prefill == 0) return "no prefill";
  if (d.exact) return "exact mode: which form a token takes would depend on its company";
  if (d.tokens - d.n_decode < mla_cuda::kLeastQueries * d.n_prefill)
    return "few queries: to expand costs more than it saves";
  if (mla_cuda::expanded_rows(d) > mla_cuda::kMostExpanded) return "contexts that pass 262,144 positions together";
  if (d.n_decode > 0) return mla_cuda_tensor_refuse(d);
  return d.aligned ? nullptr : "rows that do not begin at 16 bytes";
}
int64_t mla_cuda_expanded_scratch(const MlaDesc& d) {
  if (refuse_formats(d) != nullptr) return 0;
  mla_cuda::Layout layout(nullptr);
  mla_cuda::expanded_work(d, layout);
  mla_cuda::decode_work(d, layout);  // decode sequences beside
  return layout.bytes();
}

const char* mla_cuda_tensor_refuse(const MlaDesc& d) {
  using namespace mla_cuda;
  if (const char* reason = refuse_formats(d)) return reason;
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
