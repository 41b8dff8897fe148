// The definition of all_gather: one element at a time.
#include "kdelta/ops/all_gather/variants.h"
#include "kdelta/ops/common/dispatch.h"

namespace kdelta {

void all_gather_reference(const Exec& ex, const AllGatherArgs& a, const AllGatherDesc& desc, void*) {
  const AllGatherArgs* const* peers = all_gather_meet(ex, a);
  dispatch_activation(a.part.dtype, [&](auto x) {
    using T = decltype(x);
    for (int64_t t = 0; t < desc.rows; ++t)
      for (int r = 0; r < desc.ranks; ++r)
        for (int64_t w = 0; w < desc.width; ++w) a.out.at<T>(t)[r * desc.width + w] = peers[r]->part.at<const T>(t)[w];
  });
  ex.comm->leave();
}

}  // namespace kdelta
