#include "kdelta/ops/embed/cpu_kernel.h"

namespace kdelta {

void embed_avx2(const Exec& ex, const EmbedArgs& args, const EmbedDesc&, void*) {
  embed_cpu<simd::Avx2>(ex, args);
}

}  // namespace kdelta
