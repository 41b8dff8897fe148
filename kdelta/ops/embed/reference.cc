// The definition of the embedding: one element at a time.
#include "kdelta/ops/common/dispatch.h"
#include "kdelta/ops/embed/variants.h"

namespace kdelta {
namespace {

template <class In, class Out>
void rows(const EmbedArgs& a) {
  for (int64_t t = 0; t < a.token.dim(0); ++t) {
    const int32_t id = *a.token.at(t);
    for (int64_t d = 0; d < a.table.cols; ++d) {
      const float x = id < 0 ? 0.0f : to_float(reinterpret_cast<const In*>(a.table.row(id))[d]);
      a.out.at<Out>(t)[d] = from_float<Out>(x);
    }
  }
}

}  // namespace

void embed_reference(const Exec&, const EmbedArgs& a, const EmbedDesc&, void*) {
  dispatch_activation(a.table.dtype, [&](auto in) {
    dispatch_activation(a.out.dtype, [&](auto out) { rows<decltype(in), decltype(out)>(a); });
  });
}

}  // namespace kdelta
