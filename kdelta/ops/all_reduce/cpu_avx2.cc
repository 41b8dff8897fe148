#include "kdelta/ops/all_reduce/cpu_kernel.h"

namespace kdelta {

void all_reduce_avx2(const Exec& ex, const AllReduceArgs& args, const AllReduceDesc& desc, void*) {
  all_reduce_cpu<simd::Avx2>(ex, args, desc);
}

}  // namespace kdelta
