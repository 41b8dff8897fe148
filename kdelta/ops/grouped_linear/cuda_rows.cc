// What the CUDA rows take and how much scratch they need; compiled in every build, for --explain.
#include "kdelta/ops/common/cuda/limits.h"
#include "kdelta/ops/grouped_linear/cuda_tiles.h"
#include "kdelta/ops/grouped_linear/variants.h"

namespace kdelta {

int64_t grouped::stream_pairs(const GroupedLinearDesc& d) {
  return d.P <= 4 * d.E ? 8 : 16;
}

// Sums do not depend on it: choices may.
int64_t grouped::fp4_pairs(const GroupedLinearDesc& d) {
  if (2 * d.P <= 3 * d.E) return 4;
  return d.P <= 4 * d.E || d.K > 3840 ? 8 : 16;  // 16 of more columns do not fit shared memory
}

int64_t grouped::gemm_pairs(DType weights) {
  return weights == DType::bf16 ? 256 : 128;
}

const char* grouped_linear_refuse_mma(const GroupedLinearDesc& d) {
  if (const char* reason = grouped_linear_refuse_f32(d)) return reason;
  if (d.K % cuda::mma_columns(d.w) != 0) return "columns are no whole steps of products";
  return d.aligned ? nullptr : "rows that do not begin at 16 bytes";
}

const char* grouped_linear_refuse_stream(const GroupedLinearDesc& d) {
  if (const char* reason = grouped_linear_refuse_mma(d)) return reason;
  if (d.gated && d.out != DType::bf16) return "gated: outputs other than bf16";
  return d.K > 6144 ? "more than 6144 columns: pairs do not fit shared memory" : nullptr;
}

const char* grouped_linear_refuse_pairs(const GroupedLinearDesc& d) {
  if (const char* reason = grouped_linear_refuse_mma(d)) return reason;
  if (d.gated && d.out != DType::bf16) return "gated: outputs other than bf16";
  if (d.exact) return "exact: its sums have another order than those of more pairs";
  // Measured: 68 us where cuda_stream takes 40, of one token in 16 experts of 3072 x 3584.
  if (d.w == DType::f4_e2m1) return "FP4: cuda_fp4 and cuda_stream unpack codes faster";
  return d.P > 16 ? "more than 16 pairs: experts would be read more than once" : nullptr;
}

const char* grouped_linear_refuse_fp4(const GroupedLinearDesc& d) {
  if (d.w != DType::f4_e2m1) return "w is not MXFP4";
  if (const char* reason = grouped_linear_refuse_stream(d)) return reason;
  return d.scale_words ? nullptr : "scales of which four do not begin at 4 bytes";
}

const char* grouped_linear_refuse_gemm(const GroupedLinearDesc& d) {
  if (const char* reason = grouped_linear_refuse_mma(d)) return reason;
  if (const char* reason = grouped_linear_refuse_gated(d)) return reason;
  if (d.exact) return "exact: its sums have another order than those of few pairs";
  // Measured: unpacking codes keeps cuda_stream ahead for longer.
  if (d.P <= (d.w == DType::bf16 ? 8 : 16) * d.E) return "few pairs an expert: cuda_stream reads the weights better";
  if (d.K % 64 != 0 || d.N % 128 != 0) return "inputs or outputs are no whole tiles";
  return d.even ? nullptr : "experts that do not lie at equal distances";
}

int64_t grouped_linear_cuda_scratch(const GroupedLinearDesc& d) {
  return grouped::table_bytes(d.E) * (d.gated ? 2 : 1);
}
int64_t grouped_linear_gemm_scratch(const GroupedLinearDesc& d) {
  return grouped::gemm_scratch(d.P, d.E, d.K, grouped::gemm_pairs(d.w)).bytes;
}

}  // namespace kdelta
