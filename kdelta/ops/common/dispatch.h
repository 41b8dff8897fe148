// Turns a run-time dtype into a compile-time type: f receives a value of that type.
#pragma once

#include "kdelta/core/check.h"
#include "kdelta/core/dtype.h"

namespace kdelta {

template <class F>
KDELTA_INLINE void dispatch_activation(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f32:
      return f(float{});
    case DType::bf16:
      return f(bf16{});
    default:
      KDELTA_UNREACHABLE("activation dtype", dtype);
  }
}

}  // namespace kdelta
