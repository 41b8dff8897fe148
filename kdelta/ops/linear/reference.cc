// The definition of linear, in fp64. The weight row is taken through dequantize_row, which defines the formats.
#include <vector>

#include "kdelta/ops/common/dispatch.h"
#include "kdelta/ops/linear/variants.h"

namespace kdelta {
namespace {

template <class In, class Out>
void output_column(const AnyConstView& rows, const AnyConstView& addend, const AnyView& out, int64_t n,
                   const std::vector<float>& w) {
  for (int64_t t = 0; t < rows.dim(0); ++t) {
    const In* x = rows.at<const In>(t);
    double sum = 0;
    for (size_t k = 0; k < w.size(); ++k) sum += static_cast<double>(to_float(x[k])) * static_cast<double>(w[k]);
    if (!addend.null()) sum += static_cast<double>(to_float(addend.at<const Out>(t)[n]));
    out.at<Out>(t)[n] = from_float<Out>(static_cast<float>(sum));
  }
}

void project(const Matrix& m, const AnyConstView& x, const AnyConstView& addend, const AnyView& out) {
  std::vector<float> w(static_cast<size_t>(m.cols));
  for (int64_t n = 0; n < m.rows; ++n) {
    dequantize_row(m, n, w.data());
    dispatch_activation(x.dtype, [&](auto in) {
      dispatch_activation(out.dtype, [&](auto o) { output_column<decltype(in), decltype(o)>(x, addend, out, n, w); });
    });
  }
}

}  // namespace

void linear_reference(const Exec&, const LinearArgs& a, const LinearDesc&, void*) {
  project(a.w, a.x, a.addend, a.out);
  for (const LinearPart& p : a.more) project(p.w, a.x, {}, p.out);
}

}  // namespace kdelta
