// Stored values that are no numbers: NaN and infinity in the floating-point types, NaN among E8M0 scales. A file that
// was cut, overwritten or badly converted shows them, and one is enough to end every answer with an error.
#pragma once

#include <cstdint>

#include "kdelta/core/dtype.h"

namespace kdelta {

struct NoNumbers {
  int64_t count = 0;
  int64_t first = -1;  // element; -1: there is none
};

// Of `bytes` bytes at any address. Integer types and FP4 have none.
NoNumbers find_no_numbers(DType dtype, const void* data, int64_t bytes);

}  // namespace kdelta
