// The definition of the activations, in fp64.
#include <cmath>

#include "kdelta/ops/activation/variants.h"
#include "kdelta/ops/common/dispatch.h"

namespace kdelta {
namespace {

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

double value(const ActivationArgs& a, double gate, double up) {
  switch (a.kind) {
    case ActivationKind::swiglu:
      return gate * sigmoid(gate) * up;
    case ActivationKind::sigmoid_gate:
      return sigmoid(gate) * up;
    case ActivationKind::situ: {
      const double linear = a.linear_beta > 0 ? a.linear_beta * std::tanh(up / a.linear_beta) : up;
      return a.beta * std::tanh(gate / a.beta) * sigmoid(gate) * linear;
    }
  }
  KDELTA_UNREACHABLE("activation kind", a.kind);
}

template <class Gate, class Up, class Out>
void rows(const ActivationArgs& a) {
  for (int64_t t = 0; t < a.gate.dim(0); ++t)
    for (int64_t n = 0; n < a.gate.dim(1); ++n) {
      const double y = value(a, to_float(a.gate.at<const Gate>(t)[n]), to_float(a.up.at<const Up>(t)[n]));
      a.out.at<Out>(t)[n] = from_float<Out>(static_cast<float>(y));
    }
}

}  // namespace

void activation_reference(const Exec&, const ActivationArgs& a, const ActivationDesc&, void*) {
  dispatch_activation(a.gate.dtype, [&](auto gate) {
    dispatch_activation(a.up.dtype, [&](auto up) {
      dispatch_activation(a.out.dtype, [&](auto out) { rows<decltype(gate), decltype(up), decltype(out)>(a); });
    });
  });
}

}  // namespace kdelta
