// The compiled kernels of kda_decode.
#pragma once

#include "kdelta/ops/common/op.h"
#include "kdelta/ops/kda/decode.h"

namespace kdelta {

struct KdaDecodeDesc {
  Target target;
  int64_t T = 0, N = 0, H = 0, K = 0, V = 0, W = 0;
  DType activation = DType::bf16;
  bool aligned = false;  // every row of every operand begins at 16 bytes
};

using KdaDecodeVariant = Variant<KdaDecodeArgs, KdaDecodeDesc>;
std::span<const KdaDecodeVariant> kda_decode_variants();

const char* kda_decode_cuda_refuse(const KdaDecodeDesc& d);

#define KDELTA_VARIANT(name, needs, refuse) \
  void kda_decode_##name(const Exec&, const KdaDecodeArgs&, const KdaDecodeDesc&, void*);
#include "kdelta/ops/kda/decode_variants.inc"
#undef KDELTA_VARIANT

}  // namespace kdelta
