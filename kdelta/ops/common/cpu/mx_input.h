// The kernels of common/mx_input.h over any V of simd.h.
#pragma once

#include "kdelta/core/exec.h"
#include "kdelta/core/matrix.h"

namespace kdelta {

void mx_input_portable(const Exec&, const AnyConstView&, const View<const uint8_t>&, const MxInput&, const AnyView&);
void mx_input_avx2(const Exec&, const AnyConstView&, const View<const uint8_t>&, const MxInput&, const AnyView&);
void mx_input_avx512(const Exec&, const AnyConstView&, const View<const uint8_t>&, const MxInput&, const AnyView&);

}  // namespace kdelta
