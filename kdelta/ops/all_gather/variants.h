// The compiled kernels of all_gather, for choose(), tests and benchmarks.
#pragma once

#include "kdelta/ops/all_gather/all_gather.h"
#include "kdelta/ops/common/op.h"

namespace kdelta {

struct AllGatherDesc {
  Target target;
  int ranks = 1;
  int64_t rows = 0, width = 0;  // of one rank
};

using AllGatherVariant = Variant<AllGatherArgs, AllGatherDesc>;
std::span<const AllGatherVariant> all_gather_variants();

// The arguments of all ranks, in rank order: a rank reads every rank's part and writes its own out.
const AllGatherArgs* const* all_gather_meet(const Exec& ex, const AllGatherArgs& args);

#define KDELTA_VARIANT(name, needs, refuse, scratch) \
  void all_gather_##name(const Exec&, const AllGatherArgs&, const AllGatherDesc&, void*);
#include "kdelta/ops/all_gather/variants.inc"
#undef KDELTA_VARIANT

}  // namespace kdelta
