// The vector kernel of embed over any V of simd.h: a copy of one table row per token, through fp32 when the dtypes
// differ. The table lies in a mapped file and may start at any byte.
#pragma once

#include <cstring>

#include "kdelta/ops/common/cpu/parallel.h"
#include "kdelta/ops/common/cpu/simd.h"
#include "kdelta/ops/common/dispatch.h"
#include "kdelta/ops/embed/variants.h"

namespace kdelta {

template <class V, class In, class Out>
KDELTA_INLINE void embed_row(const void* row, Out* out, int64_t D) {
  if constexpr (sizeof(In) == sizeof(Out)) {
    std::memcpy(out, row, static_cast<size_t>(D) * sizeof(Out));
  } else {
    constexpr int64_t L = V::kLanes;
    const In* in = static_cast<const In*>(row);
    int64_t d = 0;
    for (; d + L <= D; d += L) V::load(in + d).store(out + d);
    if (d < D) V::load_n(in + d, D - d).store_n(out + d, D - d);
  }
}

template <class V>
void embed_cpu(const Exec& ex, const EmbedArgs& a) {
  const int64_t D = a.table.cols;
  parallel_for(ex, a.token.dim(0), 16384 / (D + 1) + 1, [&](int64_t begin, int64_t end) {
    dispatch_activation(a.table.dtype, [&](auto in) {
      dispatch_activation(a.out.dtype, [&](auto out) {
        using Out = decltype(out);
        for (int64_t t = begin; t < end; ++t) {
          const int64_t id = *a.token.at(t) - a.first;
          Out* row = a.out.template at<Out>(t);
          if (id >= 0 && id < a.table.rows)
            embed_row<V, decltype(in)>(a.table.row(id), row, D);
          else
            std::memset(row, 0, static_cast<size_t>(D) * sizeof(Out));
        }
      });
    });
  });
}

}  // namespace kdelta
