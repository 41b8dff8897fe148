#include "kdelta/ops/embed/cpu_kernel.h"

namespace kdelta {

void embed_portable(const Exec& ex, const EmbedArgs& args, const EmbedDesc&, void*) {
  embed_cpu<simd::Portable>(ex, args);
}

}  // namespace kdelta
