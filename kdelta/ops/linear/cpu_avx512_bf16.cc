#include "kdelta/ops/common/cpu/dot_bf16.h"
#include "kdelta/ops/common/cpu/packed.h"
#include "kdelta/ops/linear/cpu_kernel.h"

namespace kdelta {

void linear_avx512_bf16(const Exec& ex, const LinearArgs& a, const LinearDesc&, void* scratch) {
  project_packed<PackKernel>(ex, linear_projections(a), scratch);
}

}  // namespace kdelta
