#include "kdelta/ops/router/cpu_kernel.h"

namespace kdelta {

void router_portable(const Exec& ex, const RouterArgs& args, const RouterDesc& desc, void* scratch) {
  router_cpu<simd::Portable>(ex, args, desc, scratch);
}

}  // namespace kdelta
