// The definition of grouped_linear, in fp64. The weight row is taken through dequantize_row, which defines the formats.
#include <cmath>
#include <vector>

#include "kdelta/ops/common/dispatch.h"
#include "kdelta/ops/grouped_linear/variants.h"

namespace kdelta {
namespace {

template <class In, class Out>
Out product(const In* x, const std::vector<float>& w) {
  double sum = 0;
  for (size_t k = 0; k < w.size(); ++k) sum += static_cast<double>(to_float(x[k])) * static_cast<double>(w[k]);
  return from_float<Out>(static_cast<float>(sum));
}

double activate(const GroupedLinearArgs& a, double gate, double up) {
  const double sigmoid = 1 / (1 + std::exp(-gate)), beta = a.beta, linear = a.linear_beta;
  switch (a.activation) {
    case ActivationKind::swiglu:
      return gate * sigmoid * up;
    case ActivationKind::sigmoid_gate:
      return sigmoid * up;
    case ActivationKind::situ:
      return beta * std::tanh(gate / beta) * sigmoid * (linear > 0 ? linear * std::tanh(up / linear) : up);
  }
  KDELTA_UNREACHABLE("activation kind", a.activation);
}

template <class In, class Out>
void output_column(const GroupedLinearArgs& a, int64_t first, int64_t last, int64_t n, const std::vector<float>& w,
                   const std::vector<float>& up_w) {
  for (int64_t p = first; p < last; ++p) {
    const In* x = a.x.at<const In>(a.row.null() ? p : a.row.data[p]);
    Out& out = a.out.at<Out>(p)[n];
    out = product<In, Out>(x, w);
    if (!up_w.empty()) {
      const double gate = static_cast<double>(to_float(out)),
                   up = static_cast<double>(to_float(product<In, Out>(x, up_w)));
      out = from_float<Out>(static_cast<float>(activate(a, gate, up)));
    }
  }
}

}  // namespace

void grouped_linear_reference(const Exec&, const GroupedLinearArgs& a, const GroupedLinearDesc& d, void*) {
  std::vector<float> w(static_cast<size_t>(d.K)), up_w(d.gated ? w.size() : 0);
  for (int64_t e = 0; e < d.E; ++e) {
    const int64_t first = a.expert_begin.data[e], last = a.expert_begin.data[e + 1];
    for (int64_t n = 0; n < d.N && first < last; ++n) {
      dequantize_row(a.w[static_cast<size_t>(e)], n, w.data());
      if (d.gated) dequantize_row(a.up_w[static_cast<size_t>(e)], n, up_w.data());
      dispatch_activation(a.x.dtype, [&](auto in) {
        dispatch_activation(a.out.dtype,
                            [&](auto out) { output_column<decltype(in), decltype(out)>(a, first, last, n, w, up_w); });
      });
    }
  }
}

}  // namespace kdelta
