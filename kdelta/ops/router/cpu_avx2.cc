#include "kdelta/ops/router/cpu_kernel.h"

namespace kdelta {

void router_avx2(const Exec& ex, const RouterArgs& args, const RouterDesc& desc, void* scratch) {
  router_cpu<simd::Avx2>(ex, args, desc, scratch);
}

}  // namespace kdelta
