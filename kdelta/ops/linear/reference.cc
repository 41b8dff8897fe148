// The definition of linear, in fp64. The weight row is taken through dequantize_row, which defines the formats.
#include <vector>

#include "kdelta/ops/common/dispatch.h"
#include "kdelta/ops/linear/variants.h"

namespace kdelta {
namespace {

template <class In, class Out>
void output_column(const LinearArgs& a, int64_t n, const std::vector<float>& w) {
  for (int64_t t = 0; t < a.x.dim(0); ++t) {
    const In* x = a.x.at<const In>(t);
    double sum = 0;
    for (size_t k = 0; k < w.size(); ++k) sum += static_cast<double>(to_float(x[k])) * static_cast<double>(w[k]);
    if (!a.addend.null()) sum += static_cast<double>(to_float(a.addend.at<const Out>(t)[n]));
    a.out.at<Out>(t)[n] = from_float<Out>(static_cast<float>(sum));
  }
}

}  // namespace

void linear_reference(const Exec&, const LinearArgs& a, const LinearDesc&, void*) {
  std::vector<float> w(static_cast<size_t>(a.w.cols));
  for (int64_t n = 0; n < a.w.rows; ++n) {
    dequantize_row(a.w, n, w.data());
    dispatch_activation(a.x.dtype, [&](auto in) {
      dispatch_activation(a.out.dtype, [&](auto out) { output_column<decltype(in), decltype(out)>(a, n, w); });
    });
  }
}

}  // namespace kdelta
