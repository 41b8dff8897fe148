// The definition of moe_combine, in fp64. A row is live when any of its positions is.
#include "kdelta/ops/common/dispatch.h"
#include "kdelta/ops/moe_combine/variants.h"

namespace kdelta {
namespace {

double at(const AnyConstView& v, int64_t row, int64_t d) {
  return static_cast<double>(v.dtype == DType::f32 ? v.at<const float>(row)[d] : to_float(v.at<const bf16>(row)[d]));
}

double element(const MoeCombineArgs& a, int64_t t, int64_t d) {
  double sum = 0;
  bool live = false;
  for (int64_t i = 0; i < a.position.dim(1); ++i) {
    const int32_t p = *a.position.at(t, i);
    if (p < 0) continue;
    live = true;
    sum += static_cast<double>(*a.weight.at(t, i)) * at(a.y, p, d);
  }
  return live && !a.addend.null() ? sum + at(a.addend, t, d) : sum;
}

}  // namespace

void moe_combine_reference(const Exec&, const MoeCombineArgs& a, const MoeCombineDesc&, void*) {
  dispatch_activation(a.out.dtype, [&](auto out) {
    using Out = decltype(out);
    for (int64_t t = 0; t < a.out.dim(0); ++t)
      for (int64_t d = 0; d < a.out.dim(1); ++d)
        a.out.at<Out>(t)[d] = from_float<Out>(static_cast<float>(element(a, t, d)));
  });
}

}  // namespace kdelta
