// The compiled kernels of all_reduce, for choose(), tests and benchmarks.
#pragma once

#include "kdelta/ops/all_reduce/all_reduce.h"
#include "kdelta/ops/common/op.h"

namespace kdelta {

struct AllReduceDesc {
  Target target;
  int ranks = 1;
  int64_t rows = 0, width = 0;
};

using AllReduceVariant = Variant<AllReduceArgs, AllReduceDesc>;
std::span<const AllReduceVariant> all_reduce_variants();

// The arguments of all ranks, in rank order, and the end of the meeting. In between a rank reads its columns of every
// rank's partial and its own addend, and writes them to every rank's out; so ranks may run different rows of
// variants.inc.
const AllReduceArgs* const* all_reduce_meet(const Exec& ex, const AllReduceArgs& args);
void all_reduce_leave(const Exec& ex);

// Columns [begin, end) of D are rank's: whole cache lines of fp32, as equal as that allows.
struct AllReduceShare {
  int64_t begin, end;
};
KDELTA_INLINE AllReduceShare all_reduce_share(int64_t D, int rank, int ranks) {
  const int64_t lines = (D + 15) / 16, begin = lines * rank / ranks * 16, end = lines * (rank + 1) / ranks * 16;
  return {begin, end < D ? end : D};
}

#define KDELTA_VARIANT(name, needs, refuse, scratch) \
  void all_reduce_##name(const Exec&, const AllReduceArgs&, const AllReduceDesc&, void*);
#include "kdelta/ops/all_reduce/variants.inc"
#undef KDELTA_VARIANT

}  // namespace kdelta
