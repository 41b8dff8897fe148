// The definition of norm, in fp64.
#include <cmath>

#include "kdelta/ops/common/dispatch.h"
#include "kdelta/ops/norm/variants.h"

namespace kdelta {
namespace {

template <class In, class Out>
void rows(const NormArgs& a) {
  const int64_t D = a.x.dim(1);
  for (int64_t t = 0; t < a.x.dim(0); ++t) {
    const In* x = a.x.at<const In>(t);
    Out* out = a.out.at<Out>(t);
    double sum = 0;
    for (int64_t d = 0; d < D; ++d) sum += static_cast<double>(to_float(x[d])) * to_float(x[d]);
    const double scale = 1 / std::sqrt(sum / static_cast<double>(D) + static_cast<double>(a.eps));
    for (int64_t d = 0; d < D; ++d)
      out[d] = from_float<Out>(static_cast<float>(scale * to_float(x[d]) * a.weight.data[d]));
  }
}

}  // namespace

void norm_reference(const Exec&, const NormArgs& a, const NormDesc&, void*) {
  dispatch_activation(a.x.dtype, [&](auto in) {
    dispatch_activation(a.out.dtype, [&](auto out) { rows<decltype(in), decltype(out)>(a); });
  });
}

}  // namespace kdelta
