// The definition of the embedding: one element at a time.
#include <cstring>

#include "kdelta/ops/common/dispatch.h"
#include "kdelta/ops/embed/variants.h"

namespace kdelta {
namespace {

template <class In, class Out>
void rows(const EmbedArgs& a) {
  for (int64_t t = 0; t < a.token.dim(0); ++t) {
    const int64_t id = *a.token.at(t) - a.first;
    for (int64_t d = 0; d < a.table.cols; ++d) {
      In x{};
      // memcpy: a mapped file has any alignment.
      if (id >= 0 && id < a.table.rows)
        std::memcpy(&x, a.table.row(id) + d * static_cast<int64_t>(sizeof(In)), sizeof(In));
      a.out.at<Out>(t)[d] = from_float<Out>(to_float(x));
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
