// The compiled kernels of kda, for choose(), tests and benchmarks. A row serves prefill and decode sequences of one
// call alike.
#pragma once

#include "kdelta/ops/common/op.h"
#include "kdelta/ops/kda/kda.h"

namespace kdelta {

struct KdaDesc {
  Target target;
  int64_t T = 0, N = 0, H = 0, K = 0, V = 0;
  DType activation = DType::bf16;
};

using KdaVariant = Variant<KdaArgs, KdaDesc>;
std::span<const KdaVariant> kda_variants();

// Scratch of all threads together.
int64_t kda_scan_scratch(const KdaDesc& d);
int64_t kda_chunk_scratch(const KdaDesc& d);
const char* kda_refuse_f32(const KdaDesc& d);

#define KDELTA_VARIANT(name, isa, refuse, scratch) void kda_##name(const Exec&, const KdaArgs&, const KdaDesc&, void*);
#include "kdelta/ops/kda/variants.inc"
#undef KDELTA_VARIANT

}  // namespace kdelta
