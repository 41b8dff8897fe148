// The compiled kernels of linear, for choose(), tests and benchmarks. On the CPU no choice looks at T: exactness would
// be lost. On CUDA one does where Options::exact is off.
#pragma once

#include "kdelta/ops/common/op.h"
#include "kdelta/ops/linear/linear.h"

namespace kdelta {

struct LinearDesc {
  Target target;
  DType x = DType::f32, w = DType::f32, out = DType::f32;
  int64_t T = 0, K = 0, N = 0;
  bool aligned = false;    // every row of x and of the matrices begins at 16 bytes
  bool out_words = false;  // every row of a bf16 output begins at 4 bytes
  bool exact = false;      // Options::exact
  // Of inputs that are quantised: the format (else bf16), whether rows begin at 16 bytes if they are codes, and the
  // type of an x to be quantised.
  DType input = DType::bf16;
  bool codes_aligned = true;
  bool bf16_out = true;  // every output is bf16
};

using LinearVariant = Variant<LinearArgs, LinearDesc>;
std::span<const LinearVariant> linear_variants();

// fp32 panels of the threads, for MX weights.
int64_t linear_f32_scratch(const LinearDesc& d);
// The bf16 kernels take bf16 tokens and leave f32 weights to the fp32 kernels.
const char* linear_refuse_f32(const LinearDesc& d);
int64_t linear_pack_scratch(const LinearDesc& d);
int64_t linear_tile_scratch(const LinearDesc& d);
const char* linear_cuda_wgmma_refuse(const LinearDesc& d);
int64_t linear_cuda_wgmma_scratch(const LinearDesc& d);
const char* linear_cuda_fp8_refuse(const LinearDesc& d);
int64_t linear_cuda_fp8_scratch(const LinearDesc& d);
const char* linear_cuda_mma_refuse(const LinearDesc& d);

#define KDELTA_VARIANT(name, needs, refuse, scratch) \
  void linear_##name(const Exec&, const LinearArgs&, const LinearDesc&, void*);
#include "kdelta/ops/linear/variants.inc"
#undef KDELTA_VARIANT

}  // namespace kdelta
