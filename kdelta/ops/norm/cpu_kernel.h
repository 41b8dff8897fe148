// The vector kernel of norm over any V of simd.h. One row at a time (common/cpu/rms_norm.h): the sum of squares, then
// one pass of products while the row is in L1. A row's bits do not depend on how many rows there are.
#pragma once

#include "kdelta/ops/common/cpu/parallel.h"
#include "kdelta/ops/common/cpu/rms_norm.h"
#include "kdelta/ops/common/dispatch.h"
#include "kdelta/ops/norm/variants.h"

namespace kdelta {

template <class V>
void norm_cpu(const Exec& ex, const NormArgs& a) {
  const int64_t D = a.x.dim(1);
  // About 64 KB of input per piece: large enough to hide the hand-out, small enough to balance.
  const int64_t grain = 16384 / D + 1;
  parallel_for(ex, a.x.dim(0), grain, [&](int64_t begin, int64_t end) {
    dispatch_activation(a.x.dtype, [&](auto in) {
      dispatch_activation(a.out.dtype, [&](auto o) {
        for (int64_t t = begin; t < end; ++t)
          rms_norm_row<V>(a.x.template at<const decltype(in)>(t), a.weight.data, a.out.template at<decltype(o)>(t), D,
                          a.eps);
      });
    });
  });
}

}  // namespace kdelta
