// The compiled kernels of grouped_linear, for choose(), tests and benchmarks. No choice looks at P: exactness would be
// lost.
#pragma once

#include "kdelta/ops/common/op.h"
#include "kdelta/ops/grouped_linear/grouped_linear.h"

namespace kdelta {

struct GroupedLinearDesc {
  Target target;
  DType x = DType::f32, w = DType::f32, out = DType::f32;
  int64_t P = 0, E = 0, K = 0, N = 0;
  bool aligned = true;      // rows of x and of every expert begin at 16 bytes
  bool scale_words = true;  // four scales, of a row and a step of cuda_fp4, begin at 4 bytes
  bool even = true;         // experts lie at equal distances, whole rows apart
  bool exact = false;       // a pair's bits must not depend on the number of pairs
  bool gated = false;       // with up_w
};

using GroupedLinearVariant = Variant<GroupedLinearArgs, GroupedLinearDesc>;
std::span<const GroupedLinearVariant> grouped_linear_variants();

// The list of experts that have tokens, then the fp32 panels of the threads for MX weights.
int64_t grouped_linear_f32_scratch(const GroupedLinearDesc& d);
// The bf16 kernels take bf16 tokens and leave f32 weights to the fp32 kernels.
const char* grouped_linear_refuse_f32(const GroupedLinearDesc& d);
// Everything but one product at a time.
const char* grouped_linear_refuse_gated(const GroupedLinearDesc& d);
int64_t grouped_linear_pack_scratch(const GroupedLinearDesc& d);
int64_t grouped_linear_tile_scratch(const GroupedLinearDesc& d);
// The tensor-core rows of CUDA take bf16 tokens, whole steps of columns and aligned rows; cuda_stream holds x in shared
// memory, cuda_pairs is for the pairs of one or two tokens, cuda_gemm for many pairs an expert.
const char* grouped_linear_refuse_mma(const GroupedLinearDesc& d);
const char* grouped_linear_refuse_pairs(const GroupedLinearDesc& d);
const char* grouped_linear_refuse_stream(const GroupedLinearDesc& d);
const char* grouped_linear_refuse_gemm(const GroupedLinearDesc& d);
const char* grouped_linear_refuse_fp4(const GroupedLinearDesc& d);
namespace grouped {
int64_t stream_pairs(const GroupedLinearDesc& d);  // of a block of cuda_stream
int64_t fp4_pairs(const GroupedLinearDesc& d);     // of a block of cuda_fp4: 4, 8 or 16
int64_t gemm_pairs(DType weights);                 // of a tile of cuda_gemm, at most
}  // namespace grouped
// The table of experts that do not lie at equal distances.
int64_t grouped_linear_cuda_scratch(const GroupedLinearDesc& d);
int64_t grouped_linear_gemm_scratch(const GroupedLinearDesc& d);

#define KDELTA_VARIANT(name, needs, refuse, scratch) \
  void grouped_linear_##name(const Exec&, const GroupedLinearArgs&, const GroupedLinearDesc&, void*);
#include "kdelta/ops/grouped_linear/variants.inc"
#undef KDELTA_VARIANT

}  // namespace kdelta
