// The AMX kernels of linear and grouped_linear on emulated tiles; compiled apart, with their instruction set.
#pragma once

#include "kdelta/ops/grouped_linear/grouped_linear.h"
#include "kdelta/ops/linear/linear.h"

namespace kdelta::test {

// False when test_tiles_avx512_bf16.cc was compiled without its flags.
bool tiles_compiled();
void linear_emulated(const Exec& ex, const LinearArgs& args);
void grouped_linear_emulated(const Exec& ex, const GroupedLinearArgs& args);

}  // namespace kdelta::test
