// What the CUDA rows take and how much scratch they need; compiled in every build, for --explain.
#include "kdelta/ops/kda/cuda_layout.h"
#include "kdelta/ops/kda/variants.h"

namespace kdelta {

const char* kda_cuda_refuse(const KdaDesc& d) {
  return d.K > 256 ? "keys wider than 256" : nullptr;
}

const char* kda_cuda_serial_refuse(const KdaDesc& d) {
  if (d.activation != DType::bf16) return "f32 activations";
  if (d.K != 128 || d.V != 128) return "widths other than 128";
  return d.aligned ? nullptr : "rows that do not begin at 16 bytes, or lie 8 MB apart";
}

const char* kda_cuda_chunk_refuse(const KdaDesc& d) {
  if (d.exact && d.n_prefill > 0) return "exact mode: it cuts sequences by the tokens of the whole call";
  return kda_cuda_serial_refuse(d);
}

int64_t kda_cuda_chunk_scratch(const KdaDesc& d) {
  kda_cuda::Workspace w;
  const int segments = kda_cuda::default_segments(d.H, d.T, d.target.multiprocessors);
  return kda_cuda::layout_workspace(w, nullptr, d.T, d.n_prefill, d.H, d.snapshots, segments);
}
int64_t kda_cuda_serial_scratch(const KdaDesc& d) {
  kda_cuda::Workspace w;
  return kda_cuda::layout_workspace(w, nullptr, d.T, d.n_prefill, d.H, d.snapshots, 1);
}

}  // namespace kdelta
