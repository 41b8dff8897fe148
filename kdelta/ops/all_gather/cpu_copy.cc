#include <cstring>

#include "kdelta/ops/all_gather/variants.h"
#include "kdelta/ops/common/cpu/parallel.h"

namespace kdelta {

void all_gather_copy(const Exec& ex, const AllGatherArgs& a, const AllGatherDesc& d, void*) {
  const AllGatherArgs* const* peers = all_gather_meet(ex, a);
  const int64_t element = dtype_bytes(a.part.dtype), bytes = d.width * element;
  // About 64 KB per piece: more than a hand-out costs.
  parallel_for(ex, bytes > 0 ? d.rows * d.ranks : 0, 65536 / (bytes + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t t = i / d.ranks, r = i % d.ranks;
      const AnyConstView& part = peers[r]->part;
      std::memcpy(static_cast<char*>(a.out.data) + (t * a.out.stride[0] + r * d.width) * element,
                  static_cast<const char*>(part.data) + t * part.stride[0] * element, static_cast<size_t>(bytes));
    }
  });
  ex.comm->leave();
}

}  // namespace kdelta
