// The compiled kernels of mla and mla_append, for choose(), tests and benchmarks.
#pragma once

#include "kdelta/ops/common/op.h"
#include "kdelta/ops/mla/mla.h"

namespace kdelta {

struct MlaDesc {
  Target target;
  int64_t tokens = 0, heads = 0, nope = 0, rope = 0, value = 0, latent = 0;
  int64_t max_len = 0, max_context = 0, sequences = 0;  // capacities of the step
  int64_t n_prefill = 0, n_decode = 0;
  int64_t page_tokens = 0;
  bool aligned = false;  // every row of every operand begins at 16 bytes
  bool exact = false;    // Options::exact
  DType activation = DType::f32, cache = DType::f32, weight = DType::f32;
};

using MlaVariant = Variant<MlaArgs, MlaDesc>;
std::span<const MlaVariant> mla_variants();

struct MlaAppendDesc {
  Target target;
  int64_t tokens = 0;
};

using MlaAppendVariant = Variant<MlaAppendArgs, MlaAppendDesc>;
std::span<const MlaAppendVariant> mla_append_variants();
void mla_append_cuda(const Exec&, const MlaAppendArgs&, const MlaAppendDesc&, void*);

int64_t mla_reference_scratch(const MlaDesc& d);
int64_t mla_cpu_scratch(const MlaDesc& d);
const char* mla_cuda_portable_refuse(const MlaDesc& d);
int64_t mla_cuda_portable_scratch(const MlaDesc& d);
const char* mla_cuda_expanded_refuse(const MlaDesc& d);
int64_t mla_cuda_expanded_scratch(const MlaDesc& d);
const char* mla_cuda_tensor_refuse(const MlaDesc& d);
int64_t mla_cuda_tensor_scratch(const MlaDesc& d);

#define KDELTA_VARIANT(name, needs, refuse, scratch) \
  void mla_##name(const Exec&, const MlaArgs&, const MlaDesc&, void*);
#include "kdelta/ops/mla/variants.inc"
#undef KDELTA_VARIANT

}  // namespace kdelta
