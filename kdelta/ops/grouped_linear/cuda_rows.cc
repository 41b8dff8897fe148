// What the CUDA rows need; compiled in every build, for planning.
#include "kdelta/ops/grouped_linear/variants.h"

namespace kdelta {

int64_t grouped_linear_cuda_scratch(const GroupedLinearDesc& d) {
  return d.E * 32;
}

}  // namespace kdelta
