#include "kdelta/ops/common/cpu/dot_bf16.h"
#include "kdelta/ops/grouped_linear/cpu_packed.h"

namespace kdelta {

void grouped_linear_avx512_bf16(const Exec& ex, const GroupedLinearArgs& args, const GroupedLinearDesc& d,
                                void* scratch) {
  grouped_linear_packed<PackKernel>(ex, args, d, scratch);
}

}  // namespace kdelta
