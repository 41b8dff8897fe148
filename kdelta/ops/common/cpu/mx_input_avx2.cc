#include "kdelta/ops/common/cpu/mx_input_kernel.h"

namespace kdelta {

void mx_input_avx2(const Exec& ex, const AnyConstView& x, const View<const uint8_t>& scale, const MxInput& input,
                   const AnyView& out) {
  mx_input_cpu<simd::Avx2>(ex, x, scale, input, out);
}

}  // namespace kdelta
