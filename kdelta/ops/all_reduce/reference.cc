// The definition of all_reduce. Sums are fp32 here too: their order and rounding are the contract.
#include "kdelta/ops/all_reduce/variants.h"
#include "kdelta/ops/common/dispatch.h"

namespace kdelta {
namespace {

float addend_of(const AllReduceArgs& a, int64_t t, int64_t d) {
  return a.addend.dtype == DType::f32 ? a.addend.at<const float>(t)[d] : to_float(a.addend.at<const bf16>(t)[d]);
}

}  // namespace

void all_reduce_reference(const Exec& ex, const AllReduceArgs& a, const AllReduceDesc& desc, void*) {
  const AllReduceArgs* const* peers = all_reduce_meet(ex, a);
  const AllReduceShare mine = all_reduce_share(desc.width, ex.comm->rank(), desc.ranks);
  dispatch_activation(a.out.dtype, [&](auto out) {
    using Out = decltype(out);
    for (int64_t t = 0; t < desc.rows; ++t)
      for (int64_t d = mine.begin; d < mine.end; ++d) {
        float sum = peers[0]->partial.at<const float>(t)[d];
        for (int r = 1; r < desc.ranks; ++r) sum += peers[r]->partial.at<const float>(t)[d];
        if (!a.addend.null()) sum += addend_of(a, t, d);
        for (int r = 0; r < desc.ranks; ++r) peers[r]->out.at<Out>(t)[d] = from_float<Out>(sum);
      }
  });
  all_reduce_leave(ex);
}

}  // namespace kdelta
