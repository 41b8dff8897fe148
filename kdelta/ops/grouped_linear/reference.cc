// The definition of grouped_linear, in fp64. The weight row is taken through dequantize_row, which defines the formats.
#include <vector>

#include "kdelta/ops/common/dispatch.h"
#include "kdelta/ops/grouped_linear/variants.h"

namespace kdelta {
namespace {

template <class In, class Out>
void output_column(const GroupedLinearArgs& a, int64_t first, int64_t last, int64_t n, const std::vector<float>& w) {
  for (int64_t p = first; p < last; ++p) {
    const In* x = a.x.at<const In>(a.row.null() ? p : a.row.data[p]);
    double sum = 0;
    for (size_t k = 0; k < w.size(); ++k) sum += static_cast<double>(to_float(x[k])) * static_cast<double>(w[k]);
    a.out.at<Out>(p)[n] = from_float<Out>(static_cast<float>(sum));
  }
}

}  // namespace

void grouped_linear_reference(const Exec&, const GroupedLinearArgs& a, const GroupedLinearDesc& d, void*) {
  std::vector<float> w(static_cast<size_t>(d.K));
  for (int64_t e = 0; e < d.E; ++e) {
    const int64_t first = a.expert_begin.data[e], last = a.expert_begin.data[e + 1];
    for (int64_t n = 0; n < d.N && first < last; ++n) {
      dequantize_row(a.w[static_cast<size_t>(e)], n, w.data());
      dispatch_activation(a.x.dtype, [&](auto in) {
        dispatch_activation(a.out.dtype,
                            [&](auto out) { output_column<decltype(in), decltype(out)>(a, first, last, n, w); });
      });
    }
  }
}

}  // namespace kdelta
