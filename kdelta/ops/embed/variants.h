// The compiled kernels of embed, for choose(), tests and benchmarks.
#pragma once

#include "kdelta/ops/common/op.h"
#include "kdelta/ops/embed/embed.h"

namespace kdelta {

struct EmbedDesc {
  Target target;
  int64_t rows = 0, width = 0;
};

using EmbedVariant = Variant<EmbedArgs, EmbedDesc>;
std::span<const EmbedVariant> embed_variants();

// Ids are below it, also where the table holds a part.
KDELTA_INLINE int64_t embed_vocabulary(const EmbedArgs& a) {
  return a.vocabulary > 0 ? a.vocabulary : a.table.rows;
}

#define KDELTA_VARIANT(name, needs, refuse, scratch) \
  void embed_##name(const Exec&, const EmbedArgs&, const EmbedDesc&, void*);
#include "kdelta/ops/embed/variants.inc"
#undef KDELTA_VARIANT

}  // namespace kdelta
