// mx_input_values (ops/common/mx_input.h) on a CUDA device. Exists in a CUDA build alone.
#pragma once

#include "kdelta/core/exec.h"
#include "kdelta/core/matrix.h"

namespace kdelta {

void mx_input_cuda(const Exec& ex, const AnyConstView& x, const View<const uint8_t>& scale, const MxInput& input,
                   const AnyView& out);

}  // namespace kdelta
