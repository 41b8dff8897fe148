// The compiled kernels of attn_res, for choose(), tests and benchmarks.
#pragma once

#include "kdelta/ops/attn_res/attn_res.h"
#include "kdelta/ops/common/op.h"

namespace kdelta {

struct AttnResDesc {
  Target target;
  int64_t rows = 0, width = 0, streams = 0;  // streams: block capacity + the running sum
  DType dtype = DType::bf16;
  bool aligned = true;  // every row begins at 16 bytes and is a whole number of eight elements
};

using AttnResVariant = Variant<AttnResArgs, AttnResDesc>;
std::span<const AttnResVariant> attn_res_variants();

// Scratch of the CPU kernels: a row of probabilities per thread, on cache lines of its own.
KDELTA_INLINE int64_t attn_res_scratch_stride(const AttnResDesc& d) {
  return (d.streams + 15) / 16 * 16;
}
int64_t attn_res_cpu_scratch(const AttnResDesc& d);

// cuda holds a mixture in registers and a stream a lane; cuda_ring and cuda_cluster all
// streams of a token in registers.
const char* attn_res_cuda_refuse(const AttnResDesc& d);
const char* attn_res_ring_refuse(const AttnResDesc& d);
const char* attn_res_cluster_refuse(const AttnResDesc& d);  // takes few tokens
// Rows that fit the ring.
int64_t attn_res_ring_slots(const AttnResDesc& d);

#define KDELTA_VARIANT(name, needs, refuse, scratch) \
  void attn_res_##name(const Exec&, const AttnResArgs&, const AttnResDesc&, void*);
#include "kdelta/ops/attn_res/variants.inc"
#undef KDELTA_VARIANT

}  // namespace kdelta
