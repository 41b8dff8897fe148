// What the CUDA rows take; compiled in every build, for --explain.
#include "kdelta/ops/common/cuda/limits.h"
#include "kdelta/ops/linear/cuda_plan.h"
#include "kdelta/ops/linear/variants.h"

namespace kdelta {

const char* linear_cuda_wgmma_refuse(const LinearDesc& d) {
  if (d.exact) return "exact mode: its sums depend on the number of tokens";
  if (d.x != DType::bf16) return "x is f32: products and sums stay fp32";
  if (d.w == DType::f32) return "w is f32";
  if (d.T <= most_skinny_tokens(d.w)) return "few tokens: reading the weights is what takes time";
  if (!d.out_words) return "outputs whose rows do not begin at 4 bytes";
  return d.aligned ? nullptr : "rows that do not begin at 16 bytes";
}
int64_t linear_cuda_wgmma_scratch(const LinearDesc& d) {
  return gemm_scratch_bytes(d.target.multiprocessors);
}

const char* linear_cuda_fp8_refuse(const LinearDesc& d) {
  if (d.input != DType::f8_e4m3) return "inputs are not quantised to E4M3";
  if (d.w != DType::f8_e4m3) return "w is not E4M3";
  if (d.exact) return "exact mode: its sums depend on the number of tokens";
  if (d.x != DType::bf16) return "values of x are f32: products and sums stay fp32";
  if (!d.bf16_out) return "outputs are f32: sums of 32 products keep 14 bits";
  if (d.T <= kMostCodesTokens) return "few tokens: reading the weights is what takes time";
  if (!d.out_words) return "outputs whose rows do not begin at 4 bytes";
  return d.aligned && d.codes_aligned ? nullptr : "rows that do not begin at 16 bytes";
}
int64_t linear_cuda_fp8_scratch(const LinearDesc& d) {
  return fp8_scratch(d.T, d.K, d.target.multiprocessors).bytes;
}

const char* linear_cuda_mma_refuse(const LinearDesc& d) {
  if (d.x != DType::bf16) return "x is f32: products and sums stay fp32";
  if (d.w == DType::f32) return "w is f32";
  if (d.K % cuda::mma_columns(d.w) != 0) return "columns are no whole steps of products";
  if (d.K > cuda::kMostMmaColumns) return "more than 32768 columns";
  return d.aligned ? nullptr : "rows that do not begin at 16 bytes";
}

}  // namespace kdelta
