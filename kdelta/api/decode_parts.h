// A decode step of a KDA layer where no kernel fuses it: the three operators one behind the other.
#pragma once

#include "kdelta/ops/kda/decode.h"

namespace kdelta::c {

// The contract of kda_decode() on the CPU, with the bits of short_conv(), kda() and gated_norm() by themselves.
void decode_parts(const Exec& ex, const KdaDecodeArgs& args);

}  // namespace kdelta::c
